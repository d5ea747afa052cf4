#!/bin/bash
# Configures the project as packagers and newcomers do: parts that are missing, options, presets, and as a part of
# another project. Then builds the library alone, where nothing is that only tools and tests need, and uses it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*"
  exit 1
}

# No Python that has torch, whatever this test was started with.
unset LibTorch_ROOT VIRTUAL_ENV CONDA_PREFIX PYTHONPATH
common=(-G Ninja -DCMAKE_MAKE_PROGRAM="$NINJA" -DCMAKE_CXX_COMPILER="$CXX" -DLibTorch_PYTHON="$work/no-python")
without() { printf -- '-DCMAKE_DISABLE_FIND_PACKAGE_%s=ON\n' "$@"; }

# configure SOURCE OPTION...: into a new $work/tree; what is said, in lines of any length, is in $said.
configure() {
  rm -rf "$work/tree"
  local status=0
  "$CMAKE" -S "$1" -B "$work/tree" "${common[@]}" "${@:2}" >"$work/log" 2>&1 || status=$?
  said=$(tr '\n' ' ' <"$work/log" | tr -s ' ')
  return $status
}
configures() { configure "$DSCKPT_SOURCE" "$@" || fail "with $*: $(<"$work/log")"; }
refuses() { ! configure "$DSCKPT_SOURCE" "$@" || fail "with $*: nothing was wrong"; }
says() { [[ $said == *"$1"* ]] || fail "'$1' is not in: $(<"$work/log")"; }
cached() { sed -n "s/^$1:[A-Z]*=//p" "$work/tree/CMakeCache.txt"; }
compiles_with() { grep -q -- "$1" "$work/tree/compile_commands.json" || fail "$1 has no effect"; }

# What is there is found, what is not is named, and what was asked for is not left out.
configures
says "-- DSCKPT_WITH_TORCH: OFF, since LibTorch 2.1 or later is missing (pip install torch, or set"
compiles_with "-O2 -DNDEBUG"
refuses -DDSCKPT_WITH_TORCH=ON
says "DSCKPT_WITH_TORCH is ON, but LibTorch 2.1 or later is missing (pip install torch, or set"
configures -DDSCKPT_WITH_TORCH=OFF $(without CURL)
says "-- DSCKPT_WITH_TORCH: OFF, as was asked for"
says "-- DSCKPT_S3: OFF, since libcurl 7.85 or later, with HTTPS, is missing (on Debian: libcurl4-openssl-dev) --"
configures $(without pugixml)
says "-- DSCKPT_S3: OFF, since pugixml 1.11 or later is missing (on Debian: libpugixml-dev) --"
configures -DDSCKPT_S3=OFF
says "-- DSCKPT_S3: OFF, as was asked for"
refuses -DDSCKPT_S3=ON $(without CURL pugixml)
says "DSCKPT_S3 is ON, but libcurl 7.85 or later, with HTTPS, is missing (on Debian: libcurl4-openssl-dev), and pugixml"
refuses -DDSCKPT_S3=ON -DDSCKPT_TOOLS=OFF
says "DSCKPT_S3 is ON, but only the tools and the Python module do that (DSCKPT_TOOLS, DSCKPT_PYTHON_MODULE)"
refuses -DDSCKPT_S3=maybe
says "DSCKPT_S3 is ON, OFF or AUTO, not 'maybe'"

# A packager's flags and build type are theirs.
configures -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DMINE"
compiles_with "-O1 -DMINE"
! grep -qE -- '-O1 -DMINE[^"]*-(O2|DNDEBUG)' "$work/tree/compile_commands.json" || fail "the packager's flags are undone"
configures -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-DTHEIRS
compiles_with "-DTHEIRS"
[[ $(cached CMAKE_BUILD_TYPE) == None ]] || fail "the build type is another one"
echo 'string(APPEND CMAKE_CXX_FLAGS_RELEASE_INIT " -DOF_A_TOOLCHAIN ")' >"$work/toolchain.cmake"
configures -DCMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake"
compiles_with "-DOF_A_TOOLCHAIN"

# Each preset that needs no download.
(cd "$DSCKPT_SOURCE" && "$CMAKE" --list-presets) >"$work/presets"
for preset in release library torch static sanitizers; do
  grep -q "^  \"$preset\"" "$work/presets" || fail "no preset $preset: $(<"$work/presets")"
done
for preset in release library sanitizers; do
  rm -rf "$work/tree"
  (cd "$DSCKPT_SOURCE" && "$CMAKE" --preset "$preset" -B "$work/tree" -DCMAKE_MAKE_PROGRAM="$NINJA") \
    >"$work/log" 2>&1 || fail "preset $preset: $(<"$work/log")"
done

# A part of another project leaves that project's settings alone, and brings neither tools nor tests.
mkdir "$work/parent"
cat >"$work/parent/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(parent CXX)
add_subdirectory("${DSCKPT}" dsckpt)
file(WRITE "${CMAKE_BINARY_DIR}/main.cpp" "#include <dsckpt/checkpoint.h>\nint main() {}\n")
add_executable(parent "${CMAKE_BINARY_DIR}/main.cpp")
target_link_libraries(parent PRIVATE dsckpt::dsckpt)
CMAKE
configure "$work/parent" -DDSCKPT="$DSCKPT_SOURCE" || fail "as a part: $(<"$work/log")"
[[ -z $(cached CMAKE_BUILD_TYPE) ]] || fail "the parent's build type is $(cached CMAKE_BUILD_TYPE)"
[[ $(cached CMAKE_CXX_FLAGS_RELEASE) == '-O3 -DNDEBUG' ]] || fail "the parent's flags are $(cached CMAKE_CXX_FLAGS_RELEASE)"
[[ $(cached DSCKPT_TOOLS) == OFF && $(cached DSCKPT_TESTS) == OFF ]] || fail "a part brings tools or tests"

# The library alone: pkg-config knows nothing of what only tools need, and CMake finds none of it.
mkdir "$work/bin"
cat >"$work/bin/pkg-config" <<SHELL
#!/bin/sh
case "\$*" in *ncurses*|*utf8proc*|*libcurl*|*cares*) exit 1 ;; esac
exec "$PKG_CONFIG" "\$@"
SHELL
chmod +x "$work/bin/pkg-config"
needless=(-DPKG_CONFIG_EXECUTABLE="$work/bin/pkg-config" $(without CLI11 CURL pugixml mimalloc GTest LibTorch))
refuses "${needless[@]}" -DDSCKPT_TESTS=OFF
says "CLI11"
configures "${needless[@]}" -DDSCKPT_TESTS=OFF -DDSCKPT_TOOLS=OFF -DDSCKPT_WERROR=OFF -DCMAKE_UNITY_BUILD=ON \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0  # which is compiled soonest
"$CMAKE" --build "$work/tree" >"$work/log" 2>&1 || fail "the library alone: $(tail -50 "$work/log")"
"$CMAKE" --install "$work/tree" --prefix "$work/prefix" >"$work/log"
[[ ! -e $work/prefix/bin ]] || fail "there are tools: $(ls "$work/prefix/bin")"
needed=$(ldd "$(find "$work/prefix" -name libdsckpt.so)")
[[ $needed != *@(curl|ncurses|tinfo|utf8proc|pugixml|mimalloc|'not found')* ]] || fail "the library needs: $needed"
configure "$here/examples" -DCMAKE_PREFIX_PATH="$work/prefix" || fail "find_package(dsckpt): $(<"$work/log")"
"$CMAKE" --build "$work/tree" >"$work/log" 2>&1 || fail "$(<"$work/log")"
"$work/tree/list_tensors" "$DSCKPT_TESTDATA/checkpoints/z2_bf16_w2/ckpt" >"$work/out" || fail "list_tensors: exit $?"
[[ -s $work/out ]] || fail "list_tensors lists nothing"

echo "configured as it should be"
