"""What crosses a border: API objects as typed values, decoded once, strictly where a person wrote them."""
