# CMake's own defaults for a release, but -O2: -O3 makes next to nothing faster here, and takes longer to compile. Read
# by project() (CMAKE_USER_MAKE_RULES_OVERRIDE_CXX), so what a packager sets goes before it.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE_INIT "${CMAKE_CXX_FLAGS_RELEASE_INIT}")
