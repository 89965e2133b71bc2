"""bazel #11910, lionagi #3402, pitchfork #632: a kill by number, after the child was reaped, hits a stranger.

In a PID namespace the number can be given to somebody else on purpose. Nothing that is done to the handle reaches it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

# In the namespace this is PID 1, so its end takes everything along.
PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import spawnguard

def stranger(number):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(number - 1))
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)  # a group of the same number, too
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: os._exit(9))
        os.write(writer, b".")
        while True: signal.pause()
    os.read(reader, 1)
    return pid

child = spawnguard.launch(["sh", "-c", "exit 3"])
assert child.wait() == 3
pid = stranger(child.pid)
if pid != child.pid:
    sys.exit(77)
child.send_signal(signal.SIGKILL)
child.terminate()
child.kill()
assert child.stop(0) == child.poll() == 3
print("alive" if os.waitpid(pid, os.WNOHANG) == (0, 0) else "dead", flush=True)
os.kill(pid, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9, "another signal came first"
print("killed by nobody but its own", flush=True)
"""


def test_the_stranger_lives(root: object) -> None:
    for prefix in (["unshare"], ["unshare", "--user", "--map-root-user"]):
        words = [*prefix, "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROGRAM, str(root)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        except FileNotFoundError:
            pytest.skip("unshare(1) is not installed")
        if not done.stderr.startswith("unshare:"):
            break
    else:
        pytest.skip("this user may not make PID namespaces")
    if done.returncode == 77 or "ns_last_pid" in done.stderr:
        pytest.skip("numbers can't be chosen here")
    assert done.stdout == "alive\nkilled by nobody but its own\n", done.stderr
