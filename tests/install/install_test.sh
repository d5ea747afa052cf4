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
  [[ $needed != *"$BUILD"* ]] || fail "$tool uses what was built, not what was installed: $needed"
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
  options=(-std=c++20 -Wall -Wextra -Werror -fsyntax-only -x c++ "-I$prefix/include")
  [[ $header != dsckpt/torch.h ]] || options+=(-isystem "$LIBTORCH_INCLUDE")
  "$CXX" "${options[@]}" - <<<"#include <$header>" || fail "$header does not compile by itself"
  count=$((count + 1))
done < <(cd "$prefix/include" && find . -name '*.h' -printf '%P\n')
((count > 0)) || fail "no headers are installed"
((count <= 16)) || fail "$count headers are public"

# The library exports what they declare: names of the namespace, and nothing of its packages.
exported=$(nm --dynamic --defined-only --demangle "$library" | cut -d' ' -f3-)
foreign=$(grep -vE '^(dsckpt::|(typeinfo|typeinfo name|vtable) for dsckpt::)' <<<"$exported") || true
expect "what else libdsckpt exports" "" "$foreign"
for inner in Checkpoint:: CopyPlan InputFile pickle:: execute; do
  [[ $exported != *"dsckpt::$inner"* ]] || fail "libdsckpt exports dsckpt::$inner"
done

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

"$CMAKE" -S "$here/examples" -B "$work/cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$NINJA" \
  -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" \
  ${LIBTORCH_INCLUDE:+-DLibTorch_ROOT="${LIBTORCH_INCLUDE%/include}"} >"$work/cmake.log" || {
  cat "$work/cmake.log"
  fail "find_package(dsckpt)"
}
"$CMAKE" --build "$work/cmake" >"$work/build.log" || fail "$(<"$work/build.log")"
run_consumer "$work/cmake/list_tensors"

# From servers, with no environment.
if [[ $("$prefix/bin/dsckpt" --version) == *' s3'* ]]; then
  "$prefix/bin/zero-to-fp32" "$checkpoint/ckpt" "$work/near" --safe-serialization -q
  python3 "$here/far_input.py" "$checkpoint/ckpt" "$work/near" -- "$prefix/bin/zero-to-fp32" || fail "reading from servers"
fi

# A conversion, which a callback watches, makes what the tool makes.
"$prefix/bin/zero-to-fp32" "$checkpoint/ckpt" "$work/by_tool" --safe-serialization -q
"$work/cmake/to_safetensors" "$checkpoint/ckpt" "$work/by_library" >"$work/out" ||
  fail "to_safetensors: exit $?"
cmp "$work/by_tool/model.safetensors" "$work/by_library/model.safetensors" ||
  fail "the library's weights differ"
grep -qE '^([1-9][0-9]*) of \1 bytes$' "$work/out" || fail "no progress was shown: $(<"$work/out")"
expect "to_safetensors on a damaged checkpoint" "3" \
  "$("$work/cmake/to_safetensors" "$work/damaged" "$work/none" >/dev/null 2>&1 || echo $?)"
[[ ! -e $work/none ]] || fail "to_safetensors left something of a damaged checkpoint"

if [[ -n ${LIBTORCH_INCLUDE:-} ]]; then
  "$work/cmake/norms" "$checkpoint/ckpt" >"$work/norms" || fail "norms: exit $?"
  # What safetensors and torch themselves say of the weights above.
  "$DSCKPT_SOURCE/scripts/python" - "$work/by_tool/model.safetensors" >"$work/expected_norms" <<'EOF'
import sys
from safetensors.torch import load_file
for name, tensor in load_file(sys.argv[1]).items():
    print(name, f"{tensor.double().norm().item():.6g}")
EOF
  absent=$(grep -vxFf "$work/norms" "$work/expected_norms") || true
  expect "norms that norms did not print" "" "$absent"
fi

export PKG_CONFIG_PATH=$libdir/pkgconfig
expect "version in dsckpt.pc" "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' \
  "$libdir/cmake/dsckpt/dsckptConfigVersion.cmake")" "$("$PKG_CONFIG" --modversion dsckpt)"
flags=$("$PKG_CONFIG" --cflags --libs dsckpt)
"$CXX" -std=c++20 "$here/examples/list_tensors.cpp" -o "$work/consumer" $flags "-Wl,-rpath,$libdir"
run_consumer "$work/consumer"

echo "installed: ${#tools[@]} tools, $count headers"
