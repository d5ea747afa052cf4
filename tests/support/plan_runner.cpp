#include "support/plan_runner.h"

#include <array>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace dsckpt::test {
namespace {

// Computed bit by bit, so that it shares nothing with the library's checksums.
uint32_t crc32(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0xEDB88320U : 0);
      made[i] = value;
    }
    return made;
  }();
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

// The result of a mean or same item, element by element.
std::string combined(const CopyPlan& plan, const CopyItem& item, const InputFiles& inputs) {
  std::vector<std::string> operands;
  for (uint32_t i = 0; i < item.operand_count; ++i) {
    const Rows& operand = plan.operands().at(item.operand_begin + i);
    const auto bytes = inputs[operand.file].read(operand.offset, item.source.row_bytes);
    operands.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (item.op == Op::same) {
    for (const std::string& operand : operands) {
      if (operand != operands[0]) throw std::runtime_error(plan.texts().at(item.what));
    }
    return operands[0];
  }
  std::string out;
  for (uint64_t at = 0; at < item.source.row_bytes; at += sizeof(float)) {
    float sum = 0;
    for (const std::string& operand : operands) {
      float value = 0;
      std::memcpy(&value, operand.data() + at, sizeof value);
      sum += value;
    }
    sum /= static_cast<float>(operands.size());
    out.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  }
  return out;
}

// The result of an interleave item, row by row.
std::string interleaved(const CopyPlan& plan, const CopyItem& item, const InputFiles& inputs) {
  std::string out;
  for (uint64_t row = 0; row < item.rows; ++row) {
    for (uint32_t i = 0; i < item.operand_count; ++i) {
      const Rows& column = plan.operands().at(item.operand_begin + i);
      const auto bytes = inputs[column.file].read(
          column.offset + row * static_cast<uint64_t>(column.stride), column.row_bytes);
      out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> run_plan(const CopyPlan& plan, const InputFiles& inputs) {
  std::vector<PlannedInput> known;
  for (FileId id = 0; id < inputs.size(); ++id) {
    known.push_back({inputs[id].display(), inputs[id].size()});
  }
  plan.validate(known);

  std::vector<std::string> outputs;
  for (const PlannedFile& file : plan.outputs()) outputs.emplace_back(file.size, '\xcd');
  for (const CopyItem& item : plan.items()) {
    if (item.from != item.to) throw std::logic_error("run_plan does not cast");
    std::string& out = outputs.at(item.out);
    const Rows& source = item.source;
    if (item.op == Op::zeros) {
      out.replace(item.dst, source.row_bytes, source.row_bytes, '\0');
      continue;
    }
    if (item.op == Op::mean || item.op == Op::same) {
      out.replace(item.dst, source.row_bytes, combined(plan, item, inputs));
      continue;
    }
    if (item.op == Op::interleave) {
      const std::string bytes = interleaved(plan, item, inputs);
      out.replace(item.dst, bytes.size(), bytes);
      continue;
    }
    uint64_t dst = item.dst;
    for (uint64_t row = 0; row < item.rows; ++row, dst += source.row_bytes) {
      const uint64_t src =
          source.offset + static_cast<uint64_t>(static_cast<int64_t>(row) * source.stride);
      if (item.op == Op::literal) {
        out.replace(dst, source.row_bytes, plan.literals().substr(src, source.row_bytes));
      } else {
        const auto bytes = inputs[source.file].read(src, source.row_bytes);
        std::memcpy(out.data() + dst, bytes.data(), bytes.size());
      }
    }
  }
  for (const Digest& digest : plan.digests()) {
    std::string& out = outputs.at(digest.out);
    const uint32_t crc =
        crc32(std::string_view(out).substr(digest.begin, digest.end - digest.begin));
    for (const uint64_t at : digest.patches) std::memcpy(out.data() + at, &crc, sizeof crc);
  }
  return outputs;
}

void run_plan_to(const CopyPlan& plan, const InputFiles& inputs,
                 const std::filesystem::path& folder) {
  const std::vector<std::string> outputs = run_plan(plan, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::ofstream file(folder / plan.outputs()[i].path, std::ios::binary);
    file.write(outputs[i].data(), static_cast<std::streamsize>(outputs[i].size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + plan.outputs()[i].path);
  }
}

}  // namespace dsckpt::test
