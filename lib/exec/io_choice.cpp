#include "exec/io_choice.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "exec/item_reader.h"
#include "exec/workers.h"
#include "io/far_files.h"

namespace dsckpt {
namespace {

constexpr uint64_t kBufferedUnit = 256 << 10;
constexpr uint64_t kLargestDirectUnit = 2 << 20;
constexpr uint64_t kSmallestDirectUnit = 512 << 10;
// The memory for the units of all workers together.
constexpr uint64_t kDirectMemory = 16 << 20;
// Reads or writes of a conversion that wait for the disk at once; more make it no faster.
constexpr unsigned kInFlight = 8;
// Whole frames of packed files, two of them, so that threads seldom need the same one.
constexpr uint64_t kUnitOfFrames = 2 << 20;
// A request to a server takes its time however short it is, and Lustre's and GPFS's move 4 MiB at
// once. The units of all workers together take kNetworkMemory, as long as they stay long.
constexpr uint64_t kLongestNetworkUnit = 8 << 20;
constexpr uint64_t kNetworkMemory = 256 << 20;
// Pages, locks and stripes of such file systems are a client's at a time: two ranks that write
// within one take them from each other. Stripes of less than this end there, too.
constexpr uint64_t kNetworkCut = 4 << 20;
// Less than this is on the disk sooner through the page cache and fsync.
constexpr uint64_t kDurableDirect = 64 << 20;

std::optional<uint64_t> number_in(const char* file) {
  std::ifstream in(file);
  uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  std::string rest;
  for (uint64_t kilobytes = 0; in >> key >> kilobytes && std::getline(in, rest);) {
    if (key == "MemAvailable:") return kilobytes << 10;
  }
  return 8ULL << 30;
}

// As many dirty bytes as the kernel holds before it begins to write them back
// (Documentation/admin-guide/sysctl/vm.rst).
uint64_t bytes_before_write_back() {
  const uint64_t bytes = number_in("/proc/sys/vm/dirty_background_bytes").value_or(0);
  if (bytes != 0) return bytes;
  const uint64_t percent = number_in("/proc/sys/vm/dirty_background_ratio").value_or(10);
  return available_memory() / 100 * percent;
}

bool any_compressed(const InputFiles& inputs) {
  for (FileId id = 0; id < inputs.size(); ++id) {
    if (inputs[id].encoding() != Encoding::plain) return true;
  }
  return false;
}

FileSystemKind kind_of_input(const InputFile& input) {
  const bool is_object = input.far() != nullptr && input.far()->machine == kNoMachine;
  return is_object ? FileSystemKind::objects : file_system_kind(input.path());
}

// Judged by some places all over the plan.
bool is_cached(const CopyPlan& plan, const InputFiles& inputs) {
  constexpr size_t kPlaces = 64;
  const std::vector<CopyItem>& items = plan.items();
  const size_t step = items.size() / kPlaces + 1;
  for (size_t i = 0; i < items.size(); i += step) {
    std::optional<Rows> first;
    plan.for_each_source(items[i], [&](const Rows& rows, uint64_t) {
      if (!first) first = rows;
    });
    if (first && !inputs[first->file].is_cached(first->offset + first->row_bytes / 2)) return false;
  }
  return true;
}

IoChoice choose_local_io(bool direct, bool whole_frames, unsigned threads) {
  if (!direct) return {false, whole_frames ? kUnitOfFrames : kBufferedUnit, threads};
  const uint64_t share = std::bit_floor(std::max<uint64_t>(kDirectMemory / threads, 1));
  return {true, std::clamp(share, kSmallestDirectUnit, kLargestDirectUnit), threads};
}

}  // namespace

FileSystems file_systems(const InputFiles& inputs, const std::filesystem::path& output) {
  constexpr size_t kPlaces = 8;
  FileSystems systems{.output = file_system_kind(output)};
  const size_t step = inputs.size() / kPlaces + 1;
  for (size_t file = 0; file < inputs.size() && systems.input == FileSystemKind::local;
       file += step) {
    systems.input = kind_of_input(inputs[static_cast<FileId>(file)]);
  }
  return systems;
}

IoChoice choose_io(IoMode mode, const CopyPlan& plan, const InputFiles& inputs,
                   const FileSystems& systems, bool durable, bool packs, unsigned threads) {
  const uint64_t bytes = plan.bytes_written();
  const bool is_compressed = any_compressed(inputs);
  const bool direct =
      !packs && (mode == IoMode::direct ||
                 (mode == IoMode::automatic &&
                  (durable ? bytes >= kDurableDirect : bytes > bytes_before_write_back())));
  if (threads == 0) {
    const bool waits_for_disk = direct || !is_cached(plan, inputs);
    threads = waits_for_disk ? std::max(cores(), kInFlight) : cores();
    if (is_compressed) threads = std::max(threads, far_requests());
  }
  IoChoice io = choose_local_io(direct, packs || is_compressed, threads);
  const bool writes_far = systems.output != FileSystemKind::local;
  // Objects that are not compressed are read ahead (AnnouncedReads).
  const bool reads_far = systems.input != FileSystemKind::local &&
                         (systems.input != FileSystemKind::objects || is_compressed);
  if (writes_far || reads_far) {
    const uint64_t share = std::bit_floor(std::max<uint64_t>(kNetworkMemory / threads, 1));
    io.unit_bytes = std::clamp(share, ItemReader::kLongUnit, kLongestNetworkUnit);
  }
  if (writes_far) {
    io.write_bytes = io.unit_bytes;
    io.cut_bytes = kNetworkCut;
  }
  return io;
}

}  // namespace dsckpt
