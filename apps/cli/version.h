// Which build this is. version.cpp is written by CMake, anew when a commit is made.
#pragma once

namespace dsckpt::cli {

extern const char* const kVersion;
extern const char* const kCommit;    // abbreviated; "release" outside of a git checkout
extern const char* const kFeatures;  // what not every build has: "static, mimalloc"

}  // namespace dsckpt::cli
