"""pyinstaller #1759, #2552: what a frozen application starts dies of an undefined symbol in the bundle's libraries."""

from __future__ import annotations

import pytest

BUNDLE = "/tmp/_MEI1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LD_LIBRARY_PATH": BUNDLE, "LD_LIBRARY_PATH_ORIG": "/opt/lib"}, "/opt/lib"),
        ({"LD_LIBRARY_PATH": BUNDLE}, None),
        ({}, None),
    ],
    ids=["put-aside", "had-none", "not-frozen"],
)
def test_the_users_library_path_comes_back(started, environ: dict[str, str], expected: str | None) -> None:
    child = started(["-p", "frozen-app"], environ)
    assert child.environ.get("LD_LIBRARY_PATH") == expected
    assert "LD_LIBRARY_PATH_ORIG" not in child.names


def test_nothing_of_the_bundles_python_is_left(started) -> None:
    environ = {
        "PYTHONHOME": BUNDLE,
        "PYTHONPATH": f"{BUNDLE}/lib",
        "_MEIPASS2": BUNDLE,
        "_PYI_APPLICATION_HOME_DIR": BUNDLE,
        "SSL_CERT_FILE": f"{BUNDLE}/certifi/cacert.pem",
        "PATH": f"{BUNDLE}:/usr/bin:/bin",
    }
    child = started(["-p", "frozen-app"], environ)
    assert child.environ.keys() & environ.keys() == {"PATH"}
    assert child.environ["PATH"] == "/usr/bin:/bin"


def test_a_program_whose_own_certificates_are_elsewhere_keeps_them(started) -> None:
    environ = {"SSL_CERT_FILE": "/etc/ssl/cert.pem"}
    assert environ.items() <= started(["-p", "frozen-app"], environ).environ.items()
