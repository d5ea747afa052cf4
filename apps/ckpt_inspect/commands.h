// The subcommands of ckpt-inspect, one file each, listed in ckpt_inspect.cpp.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/table.h"
#include "inspect/contents.h"

namespace dsckpt::inspect {

using cli::AddCommand;
using cli::Command;

// The command without a subcommand: its options are those of `app` itself.
AddCommand add_summary;
AddCommand add_browse;
AddCommand add_tree;
AddCommand add_list;
AddCommand add_where;
AddCommand add_print;
AddCommand add_raw;
AddCommand add_stats;
AddCommand add_verify;
AddCommand add_diff;
AddCommand add_scan;

// Adds the required positional `name`, a path for Contents::open, and --tag and --root.
void add_contents_options(CLI::App& app, const std::string& name, std::string& path,
                          ContentsOptions& options);
// The same for several `paths`, at least one of which is required.
void add_contents_options(CLI::App& app, const std::string& name, std::vector<std::string>& paths,
                          ContentsOptions& options);

// Contents::open(), with a count of files on stderr if it takes long. A note says which of several
// checkpoints was opened, unless the caller prints all notes.
Contents open_contents(InputFiles& inputs, const cli::Common& common, const std::string& path,
                       const ContentsOptions& options, bool says_which = true);

// The tensors to show, and their order.
struct Selection {
  std::string match;  // an RE2 pattern, searched in names
  // "order", of the contents, or a column of the table; numbers descend.
  std::string sort = "order";
};
// Adds --match.
void add_match(CLI::App& app, Selection& selection);
// Adds --match and --sort. The latter also takes `columns`, which selected() does not know.
void add_selection(CLI::App& app, Selection& selection,
                   const std::vector<std::string>& columns = {});
// Throws UsageError for a bad pattern.
std::vector<NamedTensor> selected(const Contents& contents, const Selection& selection);
// The arguments of all commands about the tensors of one path.
struct TensorArguments {
  std::string path;
  ContentsOptions contents;
  Selection selection;
};
// Adds the positional "path", --tag, --states, --match and --sort (add_selection).
void add_tensor_arguments(CLI::App& app, TensorArguments& args,
                          const std::vector<std::string>& columns = {});
// The first columns of their tables: name, kind or state, type and shape. Then a tensor's cells
// there.
std::vector<cli::Table::Column> tensor_columns();
std::vector<std::string> tensor_cells(const NamedTensor& tensor);

// The reasons why a checkpoint with damage() is not whole, and the number of incomplete tensors.
std::vector<std::string> damage_lines(const Contents& contents);
// For a checkpoint that was opened with ContentsOptions::damaged. Prints on stderr why it is not
// whole, what is lost and what to do. Returns the exit code: kCheckFailed if it is damaged.
int say_damage(const CLI::App& app, const cli::Common& common, const Contents& contents);
// For --json, of a checkpoint with damage(): {"error", "lost_files", "incomplete"}.
nlohmann::json damage_json(const Contents& contents);
// "lost in part: zero_pp_rank_1_mp_rank_00_optim_states.pt" for a tensor; "" if it is whole.
std::string lost_text(const Contents& contents, const NamedTensor& tensor);

// Throws UsageError if there is a --match and it found nothing. For commands whose empty answer
// would be mistaken for an answer.
void require_match(const Selection& selection, bool found);

}  // namespace dsckpt::inspect
