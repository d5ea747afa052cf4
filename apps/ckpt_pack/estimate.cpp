// ckpt-pack estimate: the size after packing.

#include "pack/estimate.h"

#include <CLI/App.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text.h"
#include "ckpt_pack/commands.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "codec/frame.h"

namespace dsckpt::pack {
namespace {

struct EstimateArguments {
  std::string input;
  int level = kDefaultPackLevel;
  std::string sample = "256MB";
};

nlohmann::json json_of(const PackEstimate& estimate) {
  nlohmann::json data = {{"files", estimate.files},
                         {"bytes", estimate.bytes},
                         {"bytes_stored", static_cast<uint64_t>(estimate.stored())},
                         {"seconds", estimate.seconds},
                         {"threads", estimate.threads},
                         {"kinds", nlohmann::json::array()}};
  for (const PackEstimate::Kind& kind : estimate.kinds) {
    data["kinds"].push_back({{"kind", kind.kind},
                             {"bytes", kind.bytes},
                             {"bytes_sampled", kind.sampled},
                             {"ratio", kind.ratio()}});
  }
  return data;
}

int estimate(const cli::Common& common, const EstimateArguments& args) {
  Progress progress;
  const cli::InterruptGuard guard(progress);
  const Job job = cli::while_shown(progress, common,
                                   [&] { return plan_pack(args.input, false, true, &progress); });
  const PackEstimate estimate = [&] {
    const cli::ProgressDisplay display(progress, common);
    return estimate_pack(job, args.level, parse_size(args.sample, "size"), progress,
                         common.threads);
  }();
  if (common.json) {
    cli::print_json("estimate", json_of(estimate));
    return cli::kDone;
  }
  cli::Table table({{"type"},
                    {"bytes", cli::Table::Align::right},
                    {"packed", cli::Table::Align::right},
                    {"ratio", cli::Table::Align::right}});
  for (const PackEstimate::Kind& kind : estimate.kinds) {
    const double packed = kind.ratio() * static_cast<double>(kind.bytes);
    table.add({kind.kind, human_bytes(kind.bytes), human_bytes(static_cast<uint64_t>(packed)),
               human_percent(kind.ratio())});
  }
  std::cout << table.text(cli::Terminal::of_stdout());
  std::cout << counted(estimate.files, "file") << ", " << human_bytes(estimate.bytes)
            << " packed to about " << human_bytes(static_cast<uint64_t>(estimate.stored())) << " ("
            << human_percent(estimate.bytes == 0
                                 ? 1
                                 : estimate.stored() / static_cast<double>(estimate.bytes))
            << ") in " << human_seconds(estimate.seconds) << " on "
            << counted(estimate.threads, "thread") << ", if the disks keep up\n";
  return cli::kDone;
}

}  // namespace

Command add_estimate(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("estimate", "Sizes and time of packing, from a sample; writes nothing");
  const auto args = std::make_shared<EstimateArguments>();
  cli::input_path(sub.add_option("input", args->input, "Checkpoint, or any folder or file"))
      ->type_name("PATH")
      ->required();
  cli::in_range(sub.add_option("--level", args->level, "As for pack"), kLowestPackLevel,
                kHighestPackLevel)
      ->type_name("N")
      ->capture_default_str();
  sub.add_option("--sample", args->sample, "About so many bytes are read and compressed")
      ->type_name("SIZE")
      ->capture_default_str();
  cli::add_pass_options(sub, common);
  return {&sub, [&common, args] { return estimate(common, *args); }};
}

}  // namespace dsckpt::pack
