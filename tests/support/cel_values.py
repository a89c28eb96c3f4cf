"""Expressions without a device, by library: what is true, what fails when it is evaluated, what is no expression.

A real API server is asked the same (tests/contracts/test_selectors.py).
"""

LISTS_HOLD = [
    "[1, 2, 2].isSorted() && ![2, 1].isSorted() && [1.0].isSorted()",
    "[1, 2].sum() == 3 && [1.5, 2.0].sum() == 3.5 && [1u, 2u].sum() == 3u && [].sum() == 0",
    "[dyn(1), dyn(2.5)].min() == 1 && [3, 1, 2].max() == 3",
    "[dyn(1), dyn('a')].max() == 1 && [dyn('a'), dyn(1)].isSorted()",
    "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(2) == -1",
    "[1, 2, 3, 4].slice(1, 3) == [2, 3] && [1].slice(1, 1) == []",
    "[[1], [2, 3]].flatten() == [1, 2, 3] && [[[1]], [[2]]].flatten(2) == [1, 2] && [1].flatten(1) == [1]",
    "lists.range(3) == [0, 1, 2] && lists.range(-1) == []",
    "[1, 2, 1].distinct() == [1, 2] && [1, 2, 3].reverse() == [3, 2, 1]",
    "[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sort() == ['a', 'b'] && [].sort() == []",
    "['aaa', 'b', 'cc'].sortBy(t, t.size()) == ['b', 'cc', 'aaa'] && [1, 3].sortBy(n, -n) == [3, 1]",
    "sets.contains([1, 2], [2, 2]) && !sets.contains([1], [1, 2]) && sets.contains([1], [])",
    "sets.equivalent([1, 2], [2, 1, 1]) && !sets.equivalent([1, 2], [1])",
    "sets.intersects([1, 2], [2, 3]) && !sets.intersects([], [1])",
    "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && !lists.range(0).first().hasValue()",
    "optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(1)].unwrapOpt() == [1]",
]
LITERALS_HOLD = [
    "-7 % 3 == -1 && 7 % -3 == 1 && -7 / 2 == -3",
    "[?optional.of(1), ?optional.none(), 2] == [1, 2] && [?optional.none()].size() == 0",
    "{?'a': optional.of(1), ?'b': optional.none(), 'c': 2} == {'a': 1, 'c': 2}",
    "[dyn(1), dyn('a')].size() == 2 && [[], [1]].size() == 2 && {'a': [], 'b': [1]}.size() == 2",
]
LITERALS_REFUSED = [
    "[dyn(1), 'a'].size() == 2",
    "['a', dyn('b')].size() == 2",
    "{'a': dyn(1), 'b': 2}.size() == 2",
    "[device.attributes['a'].x, 'b'].size() == 2",
    "[quantity('1'), null].size() == 2",
    "[?1].size() == 1",
    "{?'a': 1}.size() == 1",
]
LISTS_FAIL = [
    ("[dyn(quantity('1'))].isSorted()", "no such overload"),
    ("[dyn(1), dyn(quantity('1'))].max() == 1", "no such overload"),
    ("[].min() == 1", "min called on empty list"),
    ("[dyn(1), dyn(2u)].sum() == 3", "no such overload"),
    ("[9223372036854775807, 1].sum() == 1", "integer overflow"),
    ("[1, 2, 3].slice(1, 5) == [2]", "cannot slice(1, 5)"),
    ("[1, 2, 3].slice(-1, 2) == [2]", "cannot slice(-1, 2)"),
    ("[[1]].flatten(-1) == [1]", "level must be non-negative"),
    ("[dyn(1), dyn(2u)].sort() == [1, 2]", "must have the same type"),
    ("[3, 1].sortBy(x, dyn([x])) == [3, 1]", "must be comparable"),
]
LISTS_REFUSED = [
    "[quantity('1')].isSorted()",
    "['a'].sum() == 'a'",
    "[1].sum(1) == 2",
    "[1].indexOf('a') == -1",
    "[1].flatten() == [1]",
    "[[1]].sort() == [[1]]",
    "'a'.distinct() == 'a'",
    "sets.contains([1], ['a'])",
    "[3, 1].sortBy(x, [x]) == [3, 1]",
    "{'b': 1}.sortBy(x, x) == ['b']",
]

TWO_VARIABLES_HOLD = [
    "[1, 2].all(i, v, i < v) && ![1, 2].exists(i, v, i > v) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
    "[1, 2].existsOne(i, v, v == 2) && [1, 2].exists_one(i, v, i == 0)",
    "[1, 2].exists(i, v, 1 / i == 1)",
    "[1, 2].transformList(i, v, i + v) == [1, 3] && [1, 2].transformList(i, v, i > 0, i + v) == [3]",
    "{'a': 1}.transformList(k, v, k) == ['a']",
    "[1, 2].transformMap(i, v, v * 2) == {0: 2, 1: 4} && {'a': 1}.transformMap(k, v, v > 1, v) == {}",
    "{'a': 1, 'b': 2}.transformMapEntry(k, v, {v: k}) == {1: 'a', 2: 'b'}",
    "{'a': 1, 'b': 2}.transformMapEntry(k, v, k == 'b', {v: k, v + 1: k}) == {2: 'b', 3: 'b'}",
]
TWO_VARIABLES_FAIL = [
    ("{'a': 1, 'b': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}", "key 1 already exists"),
    ("{'a': 1}.transformMapEntry(k, v, dyn(1)) == {1: 'a'}", "no such overload"),
    ("[1, 2].existsOne(i, v, 1 / i == 1)", "division by zero"),
]
TWO_VARIABLES_REFUSED = [
    "[1].all(i, i, true)",
    "[1].all(i, 1, true)",
    "[1, 2].existsOne(v, v == 2)",
    "[1, 2].map(i, v, i) == [1]",
    "{'a': 1}.transformMapEntry(k, v, 1) == {1: 'a'}",
]

TEXTS_HOLD = [
    r"""strings.quote('a"b\n\\\'') == '"a\\"b\\n\\\\\'"' && strings.quote('é\u0007\u0001') == '"é\\a\u0001"'""",
    "string(1234567.0) == '1.234567e+06' && string(100000.0) == '100000' && string(-0.5) == '-0.5'",
    "'abc'.find('[a-b]+') == 'ab' && 'abc'.find('x') == '' && 'a1'.find('([a-z])([0-9])') == 'a1'",
    "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1']",
    "'a1b22'.findAll('[0-9]+', 0) == [] && 'a1b22'.findAll('[0-9]+', -1) == ['1', '22']",
    "'abc'.findAll('x*') == ['', '', '', ''] && 'abc'.findAll('b*') == ['', 'b', '']",
]
TEXTS_FAIL = [
    ("'a'.matches('(' + '')", "invalid regular expression"),
    ("'a'.find('(' + '') == ''", "invalid regular expression"),
]
TEXTS_REFUSED = [
    "'a'.matches('(')",
    "'abc'.reverse() == 'cba'",
]

KEYS_HOLD = [
    "{dyn(1): 'a', dyn(1u): 'b', dyn(true): 'c'}.size() == 3 && {dyn(true): 'a', dyn(1): 'b'}[1] == 'b'",
    "{dyn(1): 'a', dyn(true): 'b'}[dyn(true)] == 'b' && !(dyn(1) in {true: 1}) && {dyn(1u): 1}[1] == 1",
    "{'a': 1, 'a': 2} == {'a': 2} && {dyn(1): 1, dyn(1u): 2}[1u] == 2",
    "'abc'.indexOf('', -7) == -7 && 'abc'.lastIndexOf('', 9) == 9",
    "!optional.ofNonZeroValue({?'a': optional.none()}).hasValue() && !{'a': dyn(null)}.?a.b.hasValue()",
    "!has(dyn(null).a) && !has(dyn(1).a) && !has(dyn('x').a)",
]

NETWORK_HOLD = [
    "ip('192.168.0.1').family() == 4 && ip('2001:db8::1').family() == 6",
    "isIP('10.0.0.1') && !isIP('10.0.0.256') && !isIP('010.0.0.1') && !isIP('fe80::1%eth0') && !isIP('::ffff:1.2.3.4')",
    "ip.isCanonical('2001:db8::1') && !ip.isCanonical('2001:DB8::1') && !ip.isCanonical('2001:db8:0:0:0:0:0:1')",
    "ip('0.0.0.0').isUnspecified() && ip('::').isUnspecified() && !ip('::1').isUnspecified()",
    "ip('127.3.0.1').isLoopback() && ip('::1').isLoopback() && !ip('128.0.0.1').isLoopback()",
    "ip('224.0.0.1').isLinkLocalMulticast() && !ip('224.0.1.1').isLinkLocalMulticast()",
    "ip('ff02::1').isLinkLocalMulticast() && ip('ff12::1').isLinkLocalMulticast()",
    "!ip('ff05::1').isLinkLocalMulticast()",
    "ip('169.254.1.1').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast()",
    "!ip('fd80::1').isLinkLocalUnicast()",
    "ip('192.168.0.1').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()",
    "!ip('ff05::1').isGlobalUnicast()",
    "!ip('224.0.1.1').isGlobalUnicast() && !ip('127.0.0.1').isGlobalUnicast()",
    "ip('2001:db8::abcd').isGlobalUnicast()",
    "ip('1:2::3.4.5.6') == ip('1:2::304:506') && !(ip('::1') == ip('127.0.0.1'))",
    "string(ip('2001:DB8:0:0:1:0:0:1')) == '2001:db8::1:0:0:1' && string(cidr('10.0.0.1/8')) == '10.0.0.1/8'",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3'))",
    "!cidr('10.0.0.0/8').containsIP('11.0.0.1') && !cidr('::/0').containsIP('10.0.0.1')",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR('10.0.0.0/8')",
    "cidr('10.0.0.0/8').containsCIDR(cidr('10.0.0.0/8')) && !cidr('10.0.0.0/8').containsCIDR('11.0.0.0/16')",
    "cidr('192.168.1.5/24').ip() == ip('192.168.1.5') && cidr('192.168.1.5/24').masked() == cidr('192.168.1.0/24')",
    "!(cidr('192.168.1.5/24') == cidr('192.168.1.0/24')) && cidr('::1/128').prefixLength() == 128",
    "isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0') && !isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0/08')",
    "!isCIDR('10.0.0.0/255.0.0.0') && isCIDR('::/0') && !isCIDR('::ffff:1.2.3.4/100') && !isCIDR('10.0.0.0/-1')",
]
NETWORK_FAIL = [
    ("ip('10.0.0') == ip('::1')", "cannot be read"),
    ("ip('fe80::1%eth0') == ip('::1')", "zone value is not allowed"),
    ("ip('::ffff:1.2.3.4') == ip('::1')", "IPv4-mapped"),
    ("ip.isCanonical('a')", "cannot be read"),
    ("cidr('10.0.0.0/33') == cidr('::/0')", "is no network"),
    ("cidr('10.0.0.0/8').containsIP('a')", "cannot be read"),
    ("dyn(ip('::1')) == dyn('::1')", "no such overload"),
]
NETWORK_REFUSED = [
    "ip('::1') == '::1'",
    "cidr('::/0').contains('::1')",
    "ip('::1').masked() == ip('::1')",
    "'::1'.ip() == 1",
]

NOT_JUDGED = [
    "google.protobuf.Any{}.value == b''",
    "google.protobuf.Int64Value{value: 3} == 3",
    "isURL('/a/b')",
    "url('https://example.com/').getHost() == 'example.com'",
    "!format.dns1123Label().validate('my-name').hasValue()",
    "'%s %d'.format(['a', 1]) == 'a 1'",
    "duration('1h') > duration('1s')",
    "timestamp('2024-01-02T03:04:05Z').getHours() == 3",
    "type(1) == int",
    "format.named('uuid').value().validate('1').hasValue()",
    "(" * 56 + "true" + ")" * 56,
    "+".join("1" * 112) + " > 0",
]
"""What an API server knows and no attribute of a device needs."""

BIND_HOLD = [
    "cel.bind(a, 1, cel.bind(b, a + 1, b == 2))",
    "cel.bind(x, [1, 2], x.all(y, y in x))",
    "cel.bind(x, 1 / 0, true)",
]
BIND_REFUSED = ["cel.bind(1, 2, true)", "cel.bind(a, 1, a) == 'x'", "bind(a, 1, a == 1)"]

COSTLY = [
    "['a', 'b'].isSorted()",
    "['b', 'a'].min() == 'a' && ['a', 'b'].max() == 'b'",
    "ip('::1') != ip('127.0.0.1')",
    "cidr('192.168.1.5/24') != cidr('192.168.1.0/24')",
    "['a', 'b'].join(',') == 'a,b'",
    "string(1) != string(2)",
    "lists.range(30).exists(i, lists.range(i * 1000).size() > 1000)",
]
"""True too, but the API server estimates too high a cost to store them as selectors. They pass here."""

TOO_LONG = [
    "lists.range(2000).all(i, lists.range(2000).size() > i)",
    "lists.range(200).all(a, lists.range(200).all(b, lists.range(200).all(c, a + b + c >= 0)))",
]
"""Refused by the API server, and here."""

HOLD = [*KEYS_HOLD, *LITERALS_HOLD, *LISTS_HOLD, *TWO_VARIABLES_HOLD, *TEXTS_HOLD, *NETWORK_HOLD]
FAIL = [*LISTS_FAIL, *TWO_VARIABLES_FAIL, *TEXTS_FAIL, *NETWORK_FAIL]
NO_EXPRESSION = [
    *(*LITERALS_REFUSED, *LISTS_REFUSED, *TWO_VARIABLES_REFUSED, *TEXTS_REFUSED),
    *(*NETWORK_REFUSED, *BIND_REFUSED),
]
