// write_dcp_metadata CHECKPOINT RANKS FILE
//
// Writes the `.metadata` that to-dcp would write for so many ranks, without the tensors, for models
// that are too large for a disk here.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "dsckpt/dcp.h"
#include "job/job_impl.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: write_dcp_metadata CHECKPOINT RANKS FILE\n", stderr);
    return 2;
  }
  try {
    dsckpt::SourceOptions options;
    options.optimizer_states = true;
    const auto ranks = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
    const dsckpt::Job job = dsckpt::plan_dcp(dsckpt::Source::open(argv[1], options), {.dp = ranks});
    const dsckpt::CopyPlan& plan = job->plan;
    // The last output is a single literal.
    const dsckpt::CopyItem& item = plan.items().back();
    if (plan.outputs().back().path != ".metadata" || item.op != dsckpt::Op::literal ||
        item.dst_size() != plan.outputs().back().size) {
      std::fputs("the last output is not the metadata\n", stderr);
      return 1;
    }
    std::ofstream file(argv[3], std::ios::binary);
    file << plan.literals().substr(item.source.offset, item.dst_size());
    return file.flush() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
