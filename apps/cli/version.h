// Identifies this build. CMake writes version.cpp anew for every commit.
#pragma once

namespace dsckpt::cli {

extern const char* const kVersion;
extern const char* const kCommit;    // abbreviated; "release" outside of a git checkout
extern const char* const kFeatures;  // optional features: "static, mimalloc"

}  // namespace dsckpt::cli
