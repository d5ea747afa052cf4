// The tools of the suite: one program has them all, and its name chooses the tool.
#pragma once

#include <CLI/App.hpp>

namespace dsckpt {
namespace cli {

struct Tool {
  const char* name;         // of the command
  const char* description;  // a sentence
  // The tool's own `main`. `app` has name and description, and no options yet.
  int (*run)(CLI::App& app, int argc, char** argv);
  bool has_commands = false;  // "ckpt-inspect verify"
};

}  // namespace cli

// Each has a folder of apps/; main.cpp lists them.
extern const cli::Tool kZeroToFp32;
extern const cli::Tool kToUniversal;
extern const cli::Tool kToDcp;
extern const cli::Tool kReshard;
extern const cli::Tool kCkptInspect;
extern const cli::Tool kCkptPack;
extern const cli::Tool kCkptPlan;

}  // namespace dsckpt
