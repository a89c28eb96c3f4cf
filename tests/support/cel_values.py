"""Expressions without a device, by library: what is true, what fails when it is evaluated, what is no expression.

A real API server is asked the same (tests/contracts/test_selectors.py).
"""

LISTS_HOLD = [
    "[dyn(1), dyn(2.5)].min() == 1 && [3, 1, 2].max() == 3",
    "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(2) == -1",
    "sets.contains([1, 2], [2, 2]) && !sets.contains([1], [1, 2]) && sets.contains([1], [])",
    "sets.equivalent([1, 2], [2, 1, 1]) && !sets.equivalent([1, 2], [1])",
    "sets.intersects([1, 2], [2, 3]) && !sets.intersects([], [1])",
]
QUANTITIES_HOLD = [
    "quantity('1Gi').compareTo(quantity('1024Mi')) == 0 && quantity('1Gi') == quantity('1024Mi')",
    "quantity('2').isGreaterThan(quantity('1500m')) && quantity('1G').isLessThan(quantity('1Gi'))",
    "sign(quantity('-1')) == -1 && sign(quantity('0')) == 0 && sign(quantity('1m')) == 1",
    "quantity('50k').isInteger() && quantity('50k').asInteger() == 50000 && !quantity('1500m').isInteger()",
    "quantity('1').add(quantity('2')).compareTo(quantity('3')) == 0",
    "quantity('1').sub(2).compareTo(quantity('-1')) == 0",
    "isQuantity('1.5Gi') && !isQuantity('1 Gi') && !isQuantity('1ki')",
]
LITERALS_HOLD = [
    "-7 % 3 == -1 && 7 % -3 == 1 && -7 / 2 == -3",
]
LITERALS_REFUSED = [
    "[dyn(1), 'a'].size() == 2",
    "[quantity('1'), null].size() == 2",
]
QUANTITIES_REFUSED = [
    "quantity('1').sign() == 1",
    "quantity('1') < quantity('2')",
]
LISTS_FAIL = [
    ("[dyn(1), dyn(quantity('1'))].max() == 1", "no such overload"),
    ("[].min() == 1", "min called on empty list"),
    ("[9223372036854775807, 1].sum() == 1", "integer overflow"),
]
LISTS_REFUSED = [
    "['a'].sum() == 'a'",
    "[1].sum(1) == 2",
    "[1].indexOf('a') == -1",
    "sets.contains([1], ['a'])",
]

TWO_VARIABLES_HOLD = [
    "[1, 2].all(i, v, i < v) && ![1, 2].exists(i, v, i > v) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
    "[1, 2].existsOne(i, v, v == 2) && [1, 2].exists_one(i, v, i == 0)",
    "[1, 2].exists(i, v, 1 / i == 1)",
]
TWO_VARIABLES_FAIL = [
    ("[1, 2].existsOne(i, v, 1 / i == 1)", "division by zero"),
]
TWO_VARIABLES_REFUSED = [
    "[1].all(i, i, true)",
    "[1].all(i, 1, true)",
    "[1, 2].existsOne(v, v == 2)",
    "[1, 2].map(i, v, i) == [1]",
]

TEXTS_HOLD = [
    "'%s %d%%'.format(['a', 1]) == 'a 1%' && '%.2f'.format([1.005]) == '1.00'",
    "'%s'.format([{'b': [1.5, 2.0], 'a': [dyn(1), dyn('x')]}]) == '{\"a\":[1, \"x\"], \"b\":[1.500000, 2.000000]}'",
    "type(1) in [int] && '%s'.format([type('a')]) == 'string'",
    "string(1234567.0) == '1.234567e+06' && string(100000.0) == '100000' && string(-0.5) == '-0.5'",
    "'abc'.find('[a-b]+') == 'ab' && 'abc'.find('x') == '' && 'a1'.find('([a-z])([0-9])') == 'a1'",
    "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1']",
    r"'\u001ca \u0085'.trim() == '\u001ca' && '\u2028\u3000 a\u00a0\v'.trim() == 'a' && '\u200ba'.trim() == '\u200ba'",
    "double('0x1p3') == 8.0 && double('-0X.8P+1') == -1.0",
    "double('0x_1_f.p0') == 31.0 && double('1_0.5e0_1') == 105.0",
    "'a1b22'.findAll('[0-9]+', 0) == [] && 'a1b22'.findAll('[0-9]+', -1) == ['1', '22']",
]
TEXTS_FAIL = [
    ("'a'.matches('(' + '')", "invalid regular expression"),
    ("'a'.find('(' + '') == ''", "invalid regular expression"),
    ("('%' + 's').format([]) == ''", "only 0 values"),
    *(
        (f"double('{text}' + '') > 0.0", "not a number")
        for text in ("0x1", "0x1_p3", "0x__1p3", "0x1p3_", "0x1p99999", "0xp1")
    ),
    ("('%' + '.2').format([1]) == ''", "`%.2` is not a formatting clause"),
    ("'%d'.format([dyn('a')]) == ''", "`%d` cannot show string, only int"),
    ("'%s'.format([dyn([quantity('1')])]) == ''", "`%s` cannot show quantity"),
    ("'%f'.format(['1.5']) == ''", "only NaN, Infinity and -Infinity are numbers"),
]
TEXTS_REFUSED = [
    "'a'.matches('(')",
    "'%d'.format(['a']) == 'a'",
    "'%s'.format([1, 2]) == '1'",
    "'%z'.format([1]) == ''",
]
WRAPPERS_HOLD = [
    "google.protobuf.Int64Value{} == 0 && google.protobuf.Int64Value{value: 3} + 4 == 7",
    "google.protobuf.StringValue{value: 'a',} == 'a' && google.protobuf.StringValue{} != null",
    "google.protobuf.FloatValue{value: 0.1} == 0.10000000149011612 && google.protobuf.DoubleValue{value: 0.1} == 0.1",
]
WRAPPERS_FAIL = [
    ("google.protobuf.Int32Value{value: 2147483648} == 1", "integer overflow"),
    ("google.protobuf.Int64Value{value: dyn('a')} == 1", "no such overload"),
    ("null + null == 1", "no such overload"),
]
WRAPPERS_REFUSED = [
    "google.protobuf.BoolValue{value: true}",
    "google.protobuf.Int64Value{value: null} == 0",
    "google.protobuf.Int64Value{val: 1} == 1",
    "google.protobuf.Int64Value{} == 1.5",
    "[google.protobuf.Int64Value{}, null].size() == 2",
    "[[1], [dyn(1)]].size() == 2",
]

TYPES_HOLD = [
    "type(1) == int && type('a') == string && type(true) == bool && type(1.5) == double && type(null) == null_type",
    "type([1]) == list && type({'a': 1}) == map && type(optional.of(1)) == optional_type && type(int) == type",
    "type(google.protobuf.Int64Value{}) == int && '%s'.format([type(quantity('1'))]) == 'kubernetes.Quantity'",
]
TYPES_REFUSED = [
    "type(1) == 1",
    "type(1) in [int, string]",
    "cel.bind(kind, type(1), kind == int)",
    "string(dyn(int)) == 'int'",
    "integer == type(1)",
]

KEYS_HOLD = [
    "'abc'.indexOf('', -7) == -7 && 'abc'.lastIndexOf('', 9) == 9",
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
    ("cidr('10.0.0.0/33') == cidr('::/0')", "is not a network"),
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
    "google.protobuf.UInt64Value{value: 3u} == 3u",
    "google.protobuf.Int64Value{?value: optional.of(3)} == 3",
    "google.protobuf.Int64Value{value: 3, value: 4} == 4",
    "'%.101f'.format([1.5]) != ''",
    "isURL('/a/b')",
    "url('https://example.com/').getHost() == 'example.com'",
    "!format.dns1123Label().validate('my-name').hasValue()",
    "duration('1h') > duration('1s')",
    "timestamp('2024-01-02T03:04:05Z').getHours() == 3",
    "type(ip('::1')) == net.IP",
    "[?optional.of(1), 2] == [1, 2]",
    "1u == 1",
    "b'a' == 'a'",
    "[3, 1].sortBy(n, -n) == [3, 1]",
    "lists.range(3).size() == 3",
    "{'a': 1}.transformMap(k, v, v * 2).size() == 1",
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
    "ip('::1') != ip('127.0.0.1')",
    "cidr('192.168.1.5/24') != cidr('192.168.1.0/24')",
    "string(1) != string(2)",
]
"""True too, but the API server estimates too high a cost to store them as selectors. They pass here."""

TOO_LONG = [
    f"[{', '.join(map(str, range(200)))}].all(a, device.attributes.all(b, device.attributes.all(c, b != c || a > 0)))",
]
"""Refused by the API server, and here."""

HOLD = [
    *KEYS_HOLD,
    *QUANTITIES_HOLD,
    *LITERALS_HOLD,
    *LISTS_HOLD,
    *TWO_VARIABLES_HOLD,
    *TEXTS_HOLD,
    *WRAPPERS_HOLD,
    *NETWORK_HOLD,
]
FAIL = [*LISTS_FAIL, *TWO_VARIABLES_FAIL, *TEXTS_FAIL, *WRAPPERS_FAIL, *NETWORK_FAIL]
NO_EXPRESSION = [
    *(*QUANTITIES_REFUSED, *LITERALS_REFUSED, *LISTS_REFUSED, *TWO_VARIABLES_REFUSED, *TEXTS_REFUSED),
    *(*WRAPPERS_REFUSED, *TYPES_REFUSED, *NETWORK_REFUSED, *BIND_REFUSED),
]
