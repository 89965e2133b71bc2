# Runs in every Python below a launch whose plan has something to do in the child, Python 2.7 included: it must parse
# there, do nothing but pass on below 3.8, print nothing, raise nothing of its own, and import nothing but os and sys.
import os
import sys


def _begin(plan):
    if plan and sys.version_info >= (3, 8) and os.environ.get("SPAWNGUARD_BOOTSTRAP") != "0":
        import _spawnguard_hook

        _spawnguard_hook.install(plan, "sitecustomize")


def _without(here):
    # By what it is: the entry may be spelled with a link, "./" or a trailing slash. "" is the current directory, a thing
    # of its own. One stat an entry: a real path would cost one for each of its components.
    mine = os.stat(here)
    return [entry for entry in sys.path if not entry or not _is(mine, entry)]


def _is(mine, entry):
    try:
        there = os.stat(entry)
    except OSError:
        return False
    return (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)


def _leave(here):
    # sys.path is to look as if we had never been there; and it must be without us before passing on, or the next
    # sitecustomize that is found is this one again.
    try:
        sys.path[:] = _without(here)
    except Exception:  # an entry that is no string, a directory that is gone
        sys.path[:] = [entry for entry in sys.path if entry != here]
    return here not in sys.path


def _pass_on():
    # The user's own sitecustomize, or another tool's, exactly as if it had been found first: under its name, and with
    # its errors. If there is none, the ImportError is the one that the site module expects and ignores.
    # Python 2 empties the globals of a module that nobody holds: hence the name.
    me = sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")
    return me


try:
    _begin(os.environ.get("SPAWNGUARD_PLAN"))
except Exception:  # whatever it is, the program comes first
    pass

if _leave(os.path.dirname(os.path.abspath(__file__))) and __name__ == "sitecustomize":
    _pass_on()
