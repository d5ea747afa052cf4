// A plan, run as several ranks would run it: in portions that go through bytes, each with
// nothing else of the plan.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/patches.h"
#include "exec/portion.h"
#include "exec/shares.h"
#include "plan/plan_digest.h"
#include "support/plan_tools.h"

namespace dsckpt::test {

// The outputs of a portion, in those of the whole plan. An output may be finished by many portions.
class PortionSink : public StagingSink {
 public:
  PortionSink(const std::vector<OutputId>& outputs, Sink& all) : outputs_(outputs), all_(all) {}
  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    all_.write_at(outputs_.at(out), offset, bytes);
  }
  void finish(OutputId) override {}
  SentWork end() override { return {}; }

 private:
  const std::vector<OutputId>& outputs_;
  Sink& all_;
};

// Runs the plan as `ranks` ranks that take turns. Checks all records that it knows.
inline std::vector<std::string> run_in_portions(const CopyPlan& plan, const InputFiles& inputs,
                                                const ExecOptions& options, int ranks,
                                                uint64_t cut_bytes) {
  RecordChecks checks(plan, options.records, options.check_all_records);
  const Units units(plan, checks.extra_reads(), options.unit_bytes);
  const PortionCutter cutter(plan, units, checks.use(), options.unit_bytes);
  const Shares shares(units, {}, {.ranks = ranks, .cut_bytes = cut_bytes});
  MemorySink outputs(plan);
  std::vector<DigestPiece> digests;
  std::vector<BatchRange> all;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Shares::Piece& piece : shares.of(rank)) all.push_back(piece.batches);
  }
  for (const BatchRange& batches : all) {
    const Portion cut = cutter.cut(batches);
    Portion portion = Portion::decode(cut.encode());
    if (digest_of(portion.part.plan) != digest_of(cut.part.plan)) {
      throw std::logic_error("another plan arrives");
    }
    InputFiles files = inputs.selected(portion.part.files);
    Progress progress;
    RateLimit unlimited(0, progress.cancelled);
    auto run = std::make_unique<PortionRun>(
        std::move(portion), std::move(files),
        [&](const PlanPart& part) { return std::make_unique<PortionSink>(part.outputs, outputs); },
        unlimited, progress, PortionOptions{});
    std::string bytes;
    run_portions(
        options.threads, [&] { return std::move(run); },
        [&](const PortionResult& done) { bytes = done.encode(); });
    const PortionResult result = PortionResult::decode(bytes);
    if (progress.bytes_done != units.bytes_of(batches))
      throw std::logic_error("another number of bytes");
    digests.insert(digests.end(), result.sums.digests.begin(), result.sums.digests.end());
    checks.restore(result.sums.records);
  }
  checks.verify(inputs);
  join_pieces(digests);
  for (const DigestPiece& piece : digests) {
    const Digest& digest = plan.digests()[piece.digest];
    if (piece.begin != digest.begin || piece.size != digest.end - digest.begin) {
      throw std::logic_error("a digest lacks a part");
    }
    write_left_out(units, digest, piece.crc, outputs);
  }
  return outputs.outputs();
}

}  // namespace dsckpt::test
