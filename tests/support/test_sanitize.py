"""Passwords that an exception's text names."""

import pytest
from django.db import DataError, IntegrityError

from django_delayq.support.sanitize import keep_first_lines, masked

HARMLESS = (
    "password: must have at least 8 characters",
    "password: This field is required.",
    "{'password': ['This field is required.']}",
    "fields ['username', 'password', 'email'] are required",
    "invalid token: expected a name, got '}'",
    "Unexpected token: }",
    "response=<Response [404]>, response=None",
    "KeyError: 'token'",
    "Cookie: not set",
    "key=order.close session=3 auth=basic author=me",
    "monkey: banana, turkey: 12345",
    "SharedAccessKeyName=Root",
    "PWD = value, token = parse(text), api_key = settings.KEY1_OF_THE_SITE, secret = self.secret_of_1234567890",
    "bypass=1 compass: north pass: 3 fail: 0",
    "List<Token> a <b> <token> or b",
    "--password is missing, --token must be given, --api-key",
    "https://user@h redis://john.smith2@h postgres://user1234567@h amqp://guest@h https://administrator@h",
    "tests/a.py::test_password::x, password:, {password:{",
    "eyJ is how it begins: eyJh.x",
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgres://shop:hunter2@db:5432/shop?a=b@c", "at postgres://shop:***@db:5432/shop?a=b@c"),
        ("redis://:hunter2@h, amqp://u:p@ss@h", "redis://:***@h, amqp://u:***@h"),
        ("('rediss://:hunter2@h/0', 'https://u:hunter2@h')", "('rediss://:***@h/0', 'https://u:***@h')"),
        ("http://h:80/ from a@b; see https://h/u:1@2", "http://h:80/ from a@b; see https://h/u:1@2"),
        ("host=h password=hunter2 user=u", "host=h password=*** user=u"),
        ("?api_key=hunter2&token=hunter2&n=1", "?api_key=***&token=***&n=1"),
        ("DB_PASSWD = 'hunter2 \\'hunter2', client_secret=b\"hunter2 hunter2\"", "DB_PASSWD = ***, client_secret=***"),
        ("{'password': 'hunter2', \"API-Key\": \"hunter2\"}", "{'password': ***, \"API-Key\": ***}"),
        ("invalid token: found '}', password='", "invalid token: found '}', password=***"),
        ("Authorization: Basic c2hvcDpodW50ZXIy", "Authorization: ***"),
        ("{'authorization': 'Bearer hunter2.hunter2'}", "{'authorization': ***}"),
        ("401 for Bearer eyJh.hunter2-_x==, again", "401 for Bearer ***, again"),
        ("Server=h;Uid=u;Pwd=hunter2;", "Server=h;Uid=u;Pwd=***;"),
        ("AccountName=a;AccountKey=hunter2==;EndpointSuffix=s", "AccountName=a;AccountKey=***;EndpointSuffix=s"),
        ("AWS_SECRET_ACCESS_KEY=hunter2 SharedAccessKey=hunter2", "AWS_SECRET_ACCESS_KEY=*** SharedAccessKey=***"),
        ("https://a.blob/x?sv=1&sig=hunter2%3D&se=2", "https://a.blob/x?sv=1&sig=***&se=2"),
        ("https://s3/x?X-Amz-Signature=hunter2", "https://s3/x?X-Amz-Signature=***"),
        ("Cookie: sessionid=hunter2; n=1", "Cookie: ***"),
        ("passphrase='hunter2 hunter2' private_key=hunter2", "passphrase=*** private_key=***"),
        ("postgres://u:hun/ter#2@h/d", "postgres://u:***@h/d"),
        ("mysql+pymysql://u:hunter2@h/d", "mysql+pymysql://u:***@h/d"),
        ("mongodb+srv://u:hun/ter2@h1,h2/d amqps://u:hunter2@h//", "mongodb+srv://u:***@h1,h2/d amqps://u:***@h//"),
        ("X-Api-Key: hunter2\nHost: h", "X-Api-Key: ***\nHost: h"),
        ("curl -H 'X-Auth-Token: hunter2' -H 'apikey: hunter2' h", "curl -H 'X-Auth-Token: ***' -H 'apikey: ***' h"),
        ("user: u\n  password: hunter2\n  port: 1", "user: u\n  password: ***\n  port: 1"),
        ("{host: h, password: hunter2}, secret: 'hunter2 2'", "{host: h, password: ***}, secret: ***"),
        ("[('password', 'hunter2'), ('n', '1')]", "[('password', ***), ('n', '1')]"),
        ('["Authorization", "Basic hunter2"]', '["Authorization", ***]'),
        ("(b'x-api-key', b'hunter2')", "(b'x-api-key', ***)"),
        (f'Digest qop=auth, response="{"0f" * 16}", n=1', "Digest qop=auth, response=***, n=1"),
        ("SharedAccessSignature=hunter2;EntityPath=e", "SharedAccessSignature=***;EntityPath=e"),
        ("SharedAccessSignature sr=s&sig=hunter2&se=1", "SharedAccessSignature sr=s&sig=***&se=1"),
        ("SharedAccessKeyName=Root;SharedAccessKey=hunter2", "SharedAccessKeyName=Root;SharedAccessKey=***"),
        ("DJANGO_SECRET_KEY='hunter2' credentials=hunter2", "DJANGO_SECRET_KEY=*** credentials=***"),
        ('{"password": 1234, "token" : -5e9}, n', '{"password": ***, "token" : ***}, n'),
        (r'"{\"password\": \"hun ter2\", \"n\": \"1\"}"', r'"{\"password\": \"***\", \"n\": \"1\"}"'),
        (r'"\\\"token\\\":\\\"hunter2\\\", 1"', r'"\\\"token\\\":\\\"***\\\", 1"'),
        ("git+https://ghp_hunter2hunter2@github.com/x", "git+https://***@github.com/x"),
        ("redis://HUNTERHUNTER@h rediss+cluster://hunter2-2@h", "redis://***@h rediss+cluster://***@h"),
        ("password:hunter2, passwd:hunter2 pwd:'hunter2 2'", "password:***, passwd:*** pwd:***"),
        ("password => hunter2, 'token' => 'hunter2 2'", "password => ***, 'token' => ***"),
        ("<password>hunter2</password>", "<password>***</password>"),
        ("<db:pass>hunter2 2</db:pass>", "<db:pass>***</db:pass>"),
        ("psql --password hunter2 --db-token 'hunter2 2' x", "psql --password *** --db-token *** x"),
        ("Command ['a', '--password', 'hunter2'] failed", "Command ['a', '--password', ***] failed"),
        ("pass=hunter2 DB_PASS=hunter2 smtp_pass='hunter2'", "pass=*** DB_PASS=*** smtp_pass=***"),
        ("aws_secret_access_key = hunter/2\nregion = x", "aws_secret_access_key = ***\nregion = x"),
        ("api_key = 0123456789hunterhunter==", "api_key = ***"),
        ("got eyJhbGci.eyJzdWIi.hunter-2_x, again", "got ***, again"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,X\n\nhunter2/+==\n-----END RSA PRIVATE KEY-----\nn",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nn",
        ),
        (r"'-----BEGIN PRIVATE KEY-----\nhunter2\n'", "'-----BEGIN PRIVATE KEY-----***'"),
        ("design=1 config=2", "design=1 config=2"),
        ("token = parse(text)", "token = parse(text)"),
        ("no secret here", "no secret here"),
        *((text, text) for text in HARMLESS),
    ],
)
def test_what_says_that_it_is_secret_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "part",
    [
        "://",
        "://a:",
        "password=",
        'password="',
        "password='\"\\",
        "token \t",
        "a:b@",
        "x",
        "mysql://a:",
        "authorization: ",
        'authorization="',
        "bearer ",
        "Bearer x",
        "password: ",
        "password: aaaaa",
        "cookie:a",
        "('password',",
        'password": ',
        'password": 1',
        r"password\": \"",
        r"password\": \"a\\",
        "[b'",
        "response=",
        "https://aaaaaaaa",
        "password:",
        "password =>",
        "<password>a",
        "--password ",
        "--a-",
        "-",
        "api_key = ",
        "api_key = aaaaaaaaaaaaaaaa",
        "secret_access_key = ",
        "-eyJ",
        "eyJaaaa.",
        "-----BEGIN PRIVATE KEY-----a",
    ],
)
def test_a_long_text_takes_no_longer_for_being_made_up(part: str) -> None:
    masked((part * 100_000)[:500_000])  # in quadratic time: minutes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            'duplicate key value violates unique constraint "a"\nDETAIL:  Key (b)=(hunter2) already exists.',
            'duplicate key value violates unique constraint "a"',
        ),
        ("Duplicate entry 'hunter2' for key 'auth.name'", "Duplicate entry *** for key 'auth.name'"),
        (
            "Incorrect integer value: 'hunter2' for column 'n' at row 1",
            "Incorrect integer value: *** for column 'n' at row 1",
        ),
        (
            'invalid input syntax for type integer: "hunter2"\nLINE 1: SELECT ...',
            "invalid input syntax for type integer: ***",
        ),
        ('value "99999999999" is out of range for type integer', "value *** is out of range for type integer"),
        *(
            (f"{before}'hunter2 \"2\"'{after}".replace("'", '"'), f"{before}***{after}")
            for before, after in (
                ("malformed array literal: ", ""),
                ("malformed range literal: ", ""),
                ("invalid cidr value: ", ""),
                ("invalid hexadecimal digit: ", ""),
                ("time zone ", " not recognized"),
                ("syntax error at or near ", ""),
                ("near ", ": syntax error"),
                ('invalid value for parameter "TimeZone": ', ""),
            )
        ),
        ("invalid regular expression: hunter2", "invalid regular expression: ***"),
        ("Duplicate entry 'O'Hunter' for key 'k'", "Duplicate entry *** for key 'k'"),
        ("syntax; near 'hunter2' at line 1", "syntax; near *** at line 1"),
        *(
            (text, text)
            for text in (
                'column "a" of relation "b" does not exist',
                'update or delete on table "a" violates foreign key constraint "b" on table "c"',
                'connection to server at "db" (::1), port 1 failed: FATAL:  role "shop" does not exist',
                "Can't connect to MySQL server on 'db:3306' (111)",
                "Access denied for user 'shop'@'web' to database 'd'",
                "Table 'd.t' doesn't exist",
            )
        ),
        (
            'null value in column "name" violates not-null constraint',
            'null value in column "name" violates not-null constraint',
        ),
    ],
)
def test_of_a_database_error_the_first_line_is_left_without_values(text: str, shown: str) -> None:
    cause = DataError(1366, text)
    error = ExceptionGroup("both", [IntegrityError(text)])
    error.__cause__ = cause
    keep_first_lines(error)
    assert (str(error.exceptions[0]), cause.args) == (shown, (1366, shown))


def test_of_other_errors_all_lines_are_left() -> None:
    error = ValueError("one\ntwo")
    error.__context__ = error  # a circle
    keep_first_lines(error)
    assert str(error) == "one\ntwo"
