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
    "'%s %d%%'.format(['a', 1]) == 'a 1%' && '%d'.format([3u]) == '3' && 'x'.format([]) == 'x'",
    "'%.2f'.format([1.005]) == '1.00' && '%f'.format([1.5]) == '1.500000' && '%.0f'.format([2.5]) == '2'",
    "'%e'.format([1234.5]) == '1.234500×10⁰³' && '%.2e'.format([0.00012]) == '1.200000×10⁻⁰⁴'",
    "'%x %X %x %x'.format([255, 255, 'ab', b'ab']) == 'ff FF 6162 6162' && '%x'.format([-5]) == '-5'",
    "'%o %b %b %b'.format([8, 5, true, -5]) == '10 101 1 -101'",
    """'%s'.format([[dyn(1), dyn('a'), dyn(1.5), dyn(null), dyn(true)]]) == '[1, "a", 1.500000, null, true]'""",
    """'%s'.format([{'b': 1, 'a': 2}]) == '{"a":2, "b":1}' && '%s'.format([b'ab']) == 'ab'""",
    "'%s %s %s'.format([1.0, 1e30, 1e-7]) == '1 1e+30 1e-07' && '%s'.format([double('NaN')]) == 'NaN'",
    "string(1234567.0) == '1.234567e+06' && string(100000.0) == '100000' && string(-0.5) == '-0.5'",
    "'%s'.format([null]) == 'null' && '%.3s'.format(['abcdef']) == 'abcdef'",
    "'abc'.find('[a-b]+') == 'ab' && 'abc'.find('x') == '' && 'a1'.find('([a-z])([0-9])') == 'a1'",
    "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1']",
    "'a1b22'.findAll('[0-9]+', 0) == [] && 'a1b22'.findAll('[0-9]+', -1) == ['1', '22']",
    "'abc'.findAll('x*') == ['', '', '', ''] && 'abc'.findAll('b*') == ['', 'b', '']",
]
TEXTS_FAIL = [
    ("'a'.matches('(' + '')", "invalid regular expression"),
    ("'a'.find('(' + '') == ''", "invalid regular expression"),
    ("('%' + 's').format([]) == ''", "out of range"),
    ("'%d'.format([dyn('a')]) == ''", "cannot show string"),
]
TEXTS_REFUSED = [
    "'%f'.format([1]) == '1.000000'",
    "'%d'.format(['a']) == 'a'",
    "'%s'.format([quantity('1')]) == '1'",
    "'%s'.format([]) == ''",
    "'%s'.format([1, 2]) == '1'",
    "'%z'.format([1]) == ''",
    "'a%'.format([]) == 'a%'",
    "'a'.matches('(')",
    "'abc'.reverse() == 'cba'",
]

TIMES_HOLD = [
    "duration('1h30m').getHours() == 1 && duration('1h30m').getMinutes() == 90 && duration('90s').getSeconds() == 90",
    "string(duration('1h30m')) == '5400s'",
    "string(duration('1.5s')) == '1.5s'",
    "string(duration('-1.5s')) == '-1.5s'",
    "string(duration('1ns')) == '0.000000001s'",
    "duration('1s') + duration('1s') == duration('2s') && duration('1s') < duration('2s')",
    "duration('+1s') == duration('1s')",
    "duration('0') == duration('0s')",
    "timestamp('2024-01-02T03:04:05Z').getFullYear() == 2024 && timestamp('2024-01-02T03:04:05Z').getMonth() == 0",
    "timestamp('2024-01-02T03:04:05Z').getDate() == 2 && timestamp('2024-01-02T03:04:05Z').getDayOfMonth() == 1",
    "timestamp('2024-01-02T03:04:05Z').getDayOfWeek() == 2 && timestamp('2024-01-02T03:04:05Z').getDayOfYear() == 1",
    "timestamp('2024-01-02T03:04:05Z').getHours('+02:00') == 5",
    "timestamp('2024-01-02T03:04:05Z').getHours('America/New_York') == 22",
    "timestamp('2024-01-02T03:04:05.5Z').getMilliseconds() == 500",
    "int(timestamp('2024-01-02T03:04:05Z')) == 1704164645",
    "timestamp(1704164645) == timestamp('2024-01-02T03:04:05Z')",
    "timestamp('2024-01-02T03:04:05Z') - timestamp('2024-01-02T03:04:04Z') == duration('1s')",
    "timestamp('2024-01-02T03:04:05Z') + duration('1s') == timestamp('2024-01-02T03:04:06Z')",
    "duration('1s') + timestamp('2024-01-02T03:04:05Z') == timestamp('2024-01-02T03:04:06Z')",
    "duration('1.5s').getMilliseconds() == 1500",
    "string(timestamp('2024-01-02T03:04:05.5+01:00')) == '2024-01-02T03:04:05.5+01:00'",
    "timestamp('2024-01-02T03:04:05+01:00').getHours() == 2",
    "[duration('1s'), duration('2s')].sum() == duration('3s')",
    "[duration('2s'), duration('1s')].min() == duration('1s')",
    "[timestamp(1), timestamp(0)].sort() == [timestamp(0), timestamp(1)]",
    "string(duration('-0.5s')) == '-0.5s'",
    "string(duration('100us')) == '0.0001s'",
    "string(duration('1.000000001s')) == '1.000000001s'",
    "duration('-90s').getMinutes() == -1",
    "'%s %s'.format([duration('1.5s'), timestamp(0)]) == '1.5s 1970-01-01T00:00:00Z'",
    "duration('1.5h').getMinutes() == 90 && duration('-1h1m') == duration('-61m')",
]
TIMES_FAIL = [
    ("timestamp('9999-12-31T23:59:59Z') + duration('1s') == timestamp(0)", "timestamp overflow"),
    ("duration('9223372036s') + duration('9223372036s') == duration('1s')", "integer overflow"),
    ("duration('x' + '') == duration('1s')", "invalid duration"),
]
TIMES_REFUSED = [
    "duration('1d') == duration('24h')",
    "duration('1') == duration('1s')",
    "timestamp('2024-01-02') == timestamp(0)",
    "duration('x') == duration('1s')",
    "duration(' 1s') == duration('1s')",
]

COSTLY = ["['a', 'b'].isSorted()", "['b', 'a'].min() == 'a' && ['a', 'b'].max() == 'b'"]
"""True too, but the API server estimates too high a cost to store them as selectors."""

HOLD = [*LISTS_HOLD, *TWO_VARIABLES_HOLD, *TEXTS_HOLD, *TIMES_HOLD]
FAIL = [*LISTS_FAIL, *TWO_VARIABLES_FAIL, *TEXTS_FAIL, *TIMES_FAIL]
NO_EXPRESSION = [*LISTS_REFUSED, *TWO_VARIABLES_REFUSED, *TEXTS_REFUSED, *TIMES_REFUSED]
