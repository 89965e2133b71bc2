# Sourced by the scripts beside it: finds a Python and makes the virtual environment that a script runs in.
# Every script makes its own, .venv-PURPOSE in the project's directory (ignored by git); removing it is always safe.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV # an outer environment must not choose what is tested
export PIP_DISABLE_PIP_VERSION_CHECK=1

# find_python NAME...: the first of these Pythons that runs, looked for on PATH and among pyenv's.
# pyenv puts a shim on PATH for every version it has, also for those that aren't chosen; only running one tells.
find_python() {
  local name candidate
  for name in "$@"; do
    for candidate in "$name" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"${name#python}".*/bin/python; do
      if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
        command -v "$candidate"
        return
      fi
    done
  done
  echo "no Python found; looked for: $*" >&2
  return 1
}

# install VENV ARGUMENT...: pip install, quiet about everything but errors (its warnings are about the machine's settings).
install() {
  local venv=$1
  shift
  "$venv/bin/python" -m pip install -qq --retries 5 --timeout 60 "$@"
}

# make_venv VENV PYTHON STAMP: true if the environment is new or was made for something else, and has to be filled;
# the caller then calls filled VENV STAMP. STAMP says what goes in; pyproject.toml counts too.
make_venv() {
  local venv=$1 python=$2 stamp
  stamp=$(stamp_of "$2" "$3")
  if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/stamp" 2>/dev/null)" = "$stamp" ]; then
    return 1
  fi
  echo "making $(basename "$venv") with $("$python" --version)" >&2
  rm -rf "$venv"
  "$python" -m venv "$venv"
}

filled() {
  stamp_of "$2" "$3" >"$1/stamp"
}

stamp_of() {
  echo "$1 $2 $(cksum <"$root/pyproject.toml")"
}
