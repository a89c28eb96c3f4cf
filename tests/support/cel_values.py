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

KEYS_HOLD = [
    "{dyn(1): 'a', dyn(1u): 'b', dyn(true): 'c'}.size() == 3 && {dyn(true): 'a', dyn(1): 'b'}[1] == 'b'",
    "{dyn(1): 'a', dyn(true): 'b'}[dyn(true)] == 'b' && !(dyn(1) in {true: 1}) && {dyn(1u): 1}[1] == 1",
    "{'a': 1, 'a': 2} == {'a': 2} && {dyn(1): 1, dyn(1u): 2}[1u] == 2",
    "'abc'.indexOf('', -7) == -7 && 'abc'.lastIndexOf('', 9) == 9",
    "!optional.ofNonZeroValue({?'a': optional.none()}).hasValue() && !{'a': dyn(null)}.?a.b.hasValue()",
    "!has(dyn(null).a) && !has(dyn(1).a) && !has(dyn('x').a)",
    "'%.1000f'.format([1.5]).size() == 234 && '%.32768f'.format([1234567.5]) == '1,234,567.5'",
    "'%.14e'.format([1.5]) == ' 1.500000×10⁰⁰' && '%.10000010f'.format([1.5]) == '%!(NOVERB)'",
]

TYPES_HOLD = [
    "type(1) == int && type(1u) == uint && type('a') == string && type(b'a') == bytes && type(true) == bool",
    "type(1.5) == double && type([1]) == list && type({'a': 1}) == map && type(null) == null_type",
    "type(type(1)) == type && type(int) == type(string) && type(1) != type('a')",
    "type(ip('::1')) == net.IP && type(cidr('::1/8')) == net.CIDR",
    "type(duration('1s')) == google.protobuf.Duration && type(timestamp(0)) == google.protobuf.Timestamp",
    "type(optional.of(1)) == optional_type",
]
TYPES_REFUSED = ["type(1) == 1", "type(1) == 'int'", "type() == int", "integer == type(1)"]

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
    *TYPES_HOLD,
    "['a', 'b'].isSorted()",
    "['b', 'a'].min() == 'a' && ['a', 'b'].max() == 'b'",
    "ip('::1') != ip('127.0.0.1')",
    "cidr('192.168.1.5/24') != cidr('192.168.1.0/24')",
    "['a', 'b'].join(',') == 'a,b'",
    "string(1) != string(2)",
    "lists.range(30).exists(i, lists.range(i * 1000).size() > 1000)",
]
"""True too, but the API server estimates too high a cost to store them as selectors."""

COSTS = [
    "device.attributes['a'].x.matches('[a-c]+x*')",
    "device.attributes['a'].x.find('[a-c]+x*') == 'abc'",
    "device.attributes['a'].x.findAll('[a-c]+x*').all(t, t == 'abc')",
    "device.attributes['a']['x'].contains('abcabcabcabc')",
    "device.attributes['a'].x.startsWith('abcabcabcabc') || device.driver.endsWith('c')",
    "device.attributes['a'].x.lowerAscii() == device.attributes['b'].y.trim()",
    "device.attributes['a'].x.replace('a', 'bcd').lowerAscii() == device.driver.replace('', 'x')",
    "device.attributes['a'].x.replace('abc', 'd').contains('e') && device.driver.replace('', 'x').contains('y')",
    "device.attributes['a'].x.split(',').exists(t, t == 'a')",
    "device.attributes['a'].x.split(',', 3).map(t, t.size()).exists(n, n > 2)",
    "device.attributes['a'].x.substring(1, 4) + device.driver == 'abc'",
    "device.attributes['a'].x + device.attributes['a'].x == device.attributes['a'].x",
    "device.attributes['a'].x < device.attributes['a'].y || device.driver < 'b' || 1 < 2",
    "device.attributes['a'].x in ['a', 'b', 'c'] && 'x' in device.attributes['a'] && 1 in {1: 2}",
    "device.attributes.exists(d, d == 'a') && device.attributes['a'].all(id, id != 'abc')",
    "device.attributes.exists(d, device.attributes[d].exists(id, device.attributes[d][id] == 'abc'))",
    "device.attributes['a'].exists(id, value, id == 'x' && value == 'y')",
    "device.attributes.all(d, device.capacity.all(e, d == e))",
    "device.capacity['a'].exists(id, device.capacity['a'][id] == quantity('1Gi'))",
    "device.capacity['a'].all(id, q, q.isGreaterThan(quantity('1Gi')))",
    "device.attributes['a'].map(id, id.size()).filter(n, n > 2).exists_one(n, n == 3)",
    "device.attributes['a'].filter(id, id.startsWith('x')).map(id, id + id).all(id, id == 'xyxy')",
    "device.attributes['a'].transformList(id, v, id).size() == 2",
    "device.attributes['a'].transformMap(id, v, id).exists(id, w, w == 'abc' && id == 'd')",
    "device.attributes['a'].transformMap(id, v, id != 'x', v).size() == 2",
    "device.attributes['a'].transformMapEntry(id, v, {id: id}).size() == 1",
    "device.attributes['a'].transformList(id, v, id.size()).sort() == [1, 2]",
    "['b', 'a', 'c'].sort() == ['a'] && [3, 1].sort() == [1] && ['bb', 'a'].sortBy(t, t.size()) == ['a']",
    "['b', 'a', 'c'].sortBy(t, t) == ['a'] && [3, 1].sortBy(n, -n) == [1]",
    "cel.bind(a, device.attributes['a'], a.x == a.y && a.z.contains('abc') && a.exists(id, id == 'd'))",
    "cel.bind(l, ['a', 'bc'], l.exists(t, t == device.driver))",
    "cel.bind(t, device.driver.lowerAscii(), t == t)",
    "[['a', 'bc'], ['d']][0][1] == device.driver",
    "{'a': 'xyz', 'b': 'd'}['a'] == device.driver && {'a': 'x'}.exists(k, k == device.driver)",
    "['abc', 'd'].exists(t, t == device.driver) && ['abc'].map(t, t + t).exists(t, t == device.driver)",
    "(['a', 'b'] + ['cde']).exists(t, t == device.driver)",
    "(device.allowMultipleAllocations ? ['a', 'b'] : ['cde']).exists(t, t == device.driver)",
    "(device.allowMultipleAllocations ? 'abcdefghijklmnop' : device.driver) == device.attributes['a'].x",
    "device.attributes['a'].?x.orValue('') == 'abcdefghijklmnop'",
    "device.attributes['a'].?x.optMap(t, t.size() > 2).orValue(false)",
    "device.attributes['a'][?'x'].optFlatMap(t, optional.of(t)).hasValue()",
    "device.attributes[?'a'].?x.or(optional.of('abc')).value() == 'abcdefghijklmnop'",
    "optional.of('abcdefghijklm').value() == 'abcdefghijklmnop' && optional.of(1).value() == 2",
    "has(device.attributes['a'].x) && !has(device.attributes['b'].y)",
    "string(device.attributes['a'].x) == 'abcdefghijklmnop' && string(b'abcdefghijklmnop') == 'abc'",
    "bytes('abcdefghijklmnop') == b'abcdefghijklmnop' && bytes(device.driver) == b'a'",
    "strings.quote(device.driver) == 'abcdefghijklmnop' && '%s is %d'.format(['a', 1]) == 'abcdefghijklmnop'",
    "device.attributes['a'].v == semver('1.2.3') && semver('1.2.3').compareTo(semver('1.2.4-abcdefghij')) < 0",
    "device.attributes['a'].v.isLessThan(semver(device.attributes['a'].x, true))",
    "isQuantity(device.driver) && isSemver(device.driver) && isIP(device.driver) && isCIDR('10.0.0.0/8')",
    "cidr('10.0.0.0/8').containsIP(device.driver) && cidr('10.0.0.0/8').containsIP(ip('10.0.0.1'))",
    "cidr('10.0.0.0/8').containsCIDR(device.driver) && cidr('10.0.0.0/8').containsCIDR(cidr('10.0.0.0/8'))",
    "ip.isCanonical(device.driver) && ip(device.driver).family() == 4 && cidr('10.0.0.0/8').ip().isLoopback()",
    "device.attributes['a'].n == 1 && device.attributes['a'].n * 2 + 1 > 3 && -device.attributes['a'].n < 4.5",
    "dyn(device.driver) == dyn('abcdefghijklmnop') && [dyn(1), dyn('a')].exists(x, x == 'abcdefghijklmnop')",
    "[1, 2, 3].slice(1, 2).size() == 1 && [[1], [2]].flatten() == [1] && [1, 1].distinct() == [1]",
    "[1, 2].reverse() == [2, 1] && [[[1]]].flatten(2) == [1] && lists.range(7).exists(n, n == 3)",
    "sets.contains([1, 2], [2]) && sets.equivalent(['a'], ['b', 'c']) && sets.intersects([1], [])",
    "[1, 2].first().value() == 1 && [optional.of(1)].unwrapOpt() == [1]",
    "[1, 2, 3].sum() == 6 && [1, 2, 3].indexOf(2) == 1 && 'abcdefghijklm'.indexOf('c') == 2",
    "duration('1h') > duration('1s') && timestamp('2024-01-02T03:04:05Z').getHours() == 3 && string(1) == 'abc'",
    "device.attributes['a'].x ? true : device.attributes['b'].y",
]
"""Selectors whose estimated cost is compared with the API server's; they are not evaluated."""

TOO_LONG = [
    "lists.range(2000).all(i, lists.range(2000).size() > i)",
    "lists.range(100).map(i, lists.range(i * 1000)).size() == 100",
]
"""Not stored, and stopped during an evaluation: they cost more than is allowed."""

HOLD = [*KEYS_HOLD, *LITERALS_HOLD, *LISTS_HOLD, *TWO_VARIABLES_HOLD, *TEXTS_HOLD, *TIMES_HOLD, *NETWORK_HOLD]
FAIL = [*LISTS_FAIL, *TWO_VARIABLES_FAIL, *TEXTS_FAIL, *TIMES_FAIL, *NETWORK_FAIL]
NO_EXPRESSION = [
    *(*LITERALS_REFUSED, *LISTS_REFUSED, *TWO_VARIABLES_REFUSED, *TEXTS_REFUSED, *TIMES_REFUSED),
    *(*TYPES_REFUSED, *NETWORK_REFUSED, *BIND_REFUSED),
]
