// ckpt-inspect browse: the tree of modules on a terminal, with keys to open and close them.

#include <CLI/App.hpp>
#include <memory>

#include "ckpt_inspect/browse/pages.h"
#include "ckpt_inspect/browse/screen.h"
#include "ckpt_inspect/browse/view.h"
#include "ckpt_inspect/commands.h"
#include "dsckpt/error.h"
#include "inspect/browser.h"
#include "inspect/byte_kinds.h"

namespace dsckpt::inspect {
namespace {

struct BrowseArguments {
  std::string path;
  ContentsOptions contents;
  Selection selection;
};

int browse(const CLI::App& app, const cli::Common& common, const BrowseArguments& args) {
  if (common.json) {
    throw UsageError("browse has no --json").with_hint("`ckpt-inspect tree --json` has it");
  }
  Screen::require_terminal();
  InputFiles inputs;
  const Contents contents = open_contents(inputs, common, args.path, args.contents, false);
  const std::vector<NamedTensor> tensors = selected(contents, args.selection);
  require_match(args.selection, !tensors.empty());
  Browser browser(tensors,
                  [&](const NamedTensor& tensor) { return kind_of_bytes(contents, tensor); });
  {
    const Opened opened{args.path, inputs, contents};
    Screen screen;
    View(opened, browser, screen).run();
  }
  return say_damage(app, common, contents);
}

}  // namespace

Command add_browse(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand(
      "browse", "The tree of modules on the terminal, to go through; ? shows the keys");
  const auto args = std::make_shared<BrowseArguments>();
  add_contents_options(sub, "path", args->path, args->contents);
  add_match(sub, args->selection);
  args->contents.states = true;
  args->contents.damaged = true;
  return {&sub, [&app, &common, args] { return browse(app, common, *args); }};
}

}  // namespace dsckpt::inspect
