#!/bin/sh
# Say in one line what is missing before anything is downloaded. Prints the Python to use, or ends with status 1.
# PYTHON, if set, is the Python to use; else python3 is, else a python3.N where there is no python3.
# Uses nothing but the shell: this is what runs where tools are missing.

need_java=17

fail() {
  echo "setup: $1" >&2
  exit 1
}

# "Python 3.11"; empty if it does not run.
version_of() {
  "$1" --version 2>/dev/null
}

find_python() {
  if [ -n "$PYTHON" ]; then
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
    # A launcher may be in PATH with nothing behind it: it has to answer.
    if command -v "$candidate" >/dev/null 2>&1 && [ -n "$(version_of "$candidate")" ]; then
      echo "$candidate"
      return
    fi
  done
}

remedy="install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3.11"
python=$(find_python)
[ -n "$python" ] || fail "no python3 in PATH: $remedy"
said=$(version_of "$python")
where=$(command -v "$python")
case "$said" in
  "Python "[0-9]*.[0-9]*) ;;
  *) fail "$python does not run: $remedy" ;;
esac
version=${said#Python }
major=${version%%.*}
minor=${version#*.}
minor=${minor%%[!0-9]*}
if [ "$major" -lt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -lt 11 ]; }; then
  fail "$where is Python $major.$minor: $remedy"
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$where cannot make environments (no ensurepip): install its venv package, as python3-venv on Debian"

remedy="install Java $need_java or newer, and put it in PATH or set JAVA_HOME"
if [ -n "$JAVA_HOME" ]; then
  java=$JAVA_HOME/bin/java
  [ -x "$java" ] || fail "no Java in JAVA_HOME, which is $JAVA_HOME: $remedy"
else
  java=$(command -v java) || fail "no java in PATH: $remedy"
fi
said=$("$java" -version 2>&1)
version=${said#*version \"}
version=${version#1.} # 1.8.0 is Java 8
version=${version%%[!0-9]*}
[ -n "$version" ] || fail "$java does not say which Java it is: $remedy"
[ "$version" -ge "$need_java" ] || fail "$java is Java $version: $remedy"

echo "$python"
