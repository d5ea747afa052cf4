#!/bin/bash
# Installs the build into a fresh prefix, moves the prefix, and uses what is there as a stranger
# would: CMake's find_package, pkg-config, every public header on its own, the tools.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved/here

fail() {
  echo "FAILED: $*"
  exit 1
}
expect() { # expect WHAT EXPECTED ACTUAL
  [[ $2 == "$3" ]] || fail "$1: expected '$2', got '$3'"
}

"$CMAKE" --install "$BUILD" --prefix "$work/installed" >"$work/install.log"
mkdir "$work/moved"
mv "$work/installed" "$prefix"

# Nothing of the build may be needed any more: the loader finds each library where it was moved to.
unset LD_LIBRARY_PATH
shopt -s nullglob
tools=("$prefix"/bin/*)
library=$(find "$prefix" -name libdsckpt.so)
[[ -n $library ]] || fail "libdsckpt.so is not installed"
libdir=$(dirname "$library")
for tool in "${tools[@]}"; do
  needed=$(ldd "$tool")
  [[ $needed != *'not found'* ]] || fail "$tool lacks a library: $needed"
  [[ $needed == *"$prefix"* ]] || fail "$tool does not use the library beside it: $needed"
  [[ $needed != *torch* ]] || fail "$tool loads LibTorch: $needed"
  for option in --version --help; do
    (cd / && env -i "$tool" "$option" >"$work/out" 2>"$work/err") || fail "$tool $option: exit $?"
    [[ -s $work/out ]] || fail "$tool $option printed nothing"
    [[ ! -s $work/err ]] || fail "$tool $option: $(<"$work/err")"
  done
  name=${tool##*/}
  share=$prefix/share
  for file in "$share/man/man1/$name.1" "$share/bash-completion/completions/$name" \
    "$share/zsh/site-functions/_$name" "$share/fish/vendor_completions.d/$name.fish"; do
    [[ -s $file ]] || fail "$name lacks $file"
  done
  expect "manual of the installed $name" "$("$tool" --generate man)" "$(<"$share/man/man1/$name.1")"
done

# Each public header compiles by itself, with only what is installed.
count=0
while read -r header; do
  options=(-std=c++20 -Wall -Wextra -Werror -fsyntax-only -x c++ "-I$prefix/include/dsckpt")
  [[ $header != tensor_api.h ]] || options+=(-isystem "$LIBTORCH_INCLUDE")
  "$CXX" "${options[@]}" - <<<"#include \"$header\"" || fail "$header does not compile by itself"
  count=$((count + 1))
done < <(cd "$prefix/include/dsckpt" && find . -name '*.h' -printf '%P\n')
((count > 0)) || fail "no headers are installed"

checkpoint=$DSCKPT_TESTDATA/checkpoints/z2_bf16_w2
# What the model itself said its parameters are.
"$DSCKPT_SOURCE/scripts/python" - "$checkpoint/case.json" >"$work/expected" <<'EOF'
import json, sys
for name, shape in json.load(open(sys.argv[1]))["param_shapes"].items():
    print(name, shape)
EOF
[[ -s $work/expected ]] || fail "case.json names no parameters"

cp -r "$checkpoint/ckpt" "$work/damaged"
for shard in "$work"/damaged/*/*_optim_states.pt; do
  truncate -s 100 "$shard"
done

run_consumer() { # run_consumer PROGRAM
  "$1" "$checkpoint/ckpt" >"$work/out" || fail "$1: $(<"$work/out")"
  local absent
  absent=$(grep -vxFf "$work/out" "$work/expected") || true
  expect "what $1 did not list" "" "$absent"
  expect "$1 on a damaged checkpoint" "corrupt" "$("$1" "$work/damaged" || [[ $? == 3 ]])"
}

"$CMAKE" -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$NINJA" \
  -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" || {
  cat "$work/cmake.log"
  fail "find_package(dsckpt)"
}
"$CMAKE" --build "$work/cmake" >"$work/build.log" || fail "$(<"$work/build.log")"
run_consumer "$work/cmake/consumer"

export PKG_CONFIG_PATH=$libdir/pkgconfig
expect "version in dsckpt.pc" "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' \
  "$libdir/cmake/dsckpt/dsckptConfigVersion.cmake")" "$("$PKG_CONFIG" --modversion dsckpt)"
flags=$("$PKG_CONFIG" --cflags --libs dsckpt)
"$CXX" -std=c++20 "$here/consumer.cpp" -o "$work/consumer" $flags "-Wl,-rpath,$libdir"
run_consumer "$work/consumer"

echo "installed: ${#tools[@]} tools, $count headers"
