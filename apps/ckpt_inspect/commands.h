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

// What the tool does without a subcommand: its options are those of `app` itself.
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

// Adds the positional `name`, a path that Contents::open takes and that has to be given, --tag and
// --root.
void add_contents_options(CLI::App& app, const std::string& name, std::string& path,
                          ContentsOptions& options);
// The same for several `paths`, of which one has to be given.
void add_contents_options(CLI::App& app, const std::string& name, std::vector<std::string>& paths,
                          ContentsOptions& options);

// Contents::open(), with the files counted on stderr where that takes long. Unless others say all
// notes, a note says which of several it is.
Contents open_contents(InputFiles& inputs, const cli::Common& common, const std::string& path,
                       const ContentsOptions& options, bool says_which = true);

// Which tensors, and in what order.
struct Selection {
  std::string match;  // an RE2 pattern, searched in names
  // "order", of the contents, or a column of the table; numbers fall.
  std::string sort = "order";
};
// Adds --match.
void add_match(CLI::App& app, Selection& selection);
// Adds --match and --sort, which takes `columns`, too, that selected() does not know.
void add_selection(CLI::App& app, Selection& selection,
                   const std::vector<std::string>& columns = {});
// Throws UsageError for a bad pattern.
std::vector<NamedTensor> selected(const Contents& contents, const Selection& selection);
// What commands about the tensors of one path have in common.
struct TensorArguments {
  std::string path;
  ContentsOptions contents;
  Selection selection;
};
// Adds the positional "path", --tag, --states, --match and --sort (add_selection).
void add_tensor_arguments(CLI::App& app, TensorArguments& args,
                          const std::vector<std::string>& columns = {});
// The first columns of their tables, name, kind or state, type and shape, and a tensor's cells
// there.
std::vector<cli::Table::Column> tensor_columns();
std::vector<std::string> tensor_cells(const NamedTensor& tensor);

// Why a checkpoint with damage() is not whole, and how many tensors are lost in part.
std::vector<std::string> damage_lines(const Contents& contents);
// Of a checkpoint that was opened with ContentsOptions::damaged: says why it is not whole, what is
// lost and what to do, on stderr. The exit code: kCheckFailed if it is damaged.
int say_damage(const CLI::App& app, const cli::Common& common, const Contents& contents);
// For --json, of a checkpoint with damage(): {"error", "lost_files", "incomplete"}.
nlohmann::json damage_json(const Contents& contents);
// "lost in part: zero_pp_rank_1_mp_rank_00_optim_states.pt" of one of its tensors; "" if it is
// whole.
std::string lost_text(const Contents& contents, const NamedTensor& tensor);

// For commands whose answer about nothing would pass for one about something. Throws UsageError if
// there is a --match and it found nothing.
void require_match(const Selection& selection, bool found);

}  // namespace dsckpt::inspect
