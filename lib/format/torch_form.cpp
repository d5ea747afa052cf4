#include "format/torch_form.h"

#include <algorithm>

#include "base/bytes.h"

namespace dsckpt {
namespace {

using namespace std::literals;

constexpr std::string_view kMagicText = "L119547037146038801333356L"sv;  // protocols 0 and 1

}  // namespace

bool is_tar(std::string_view head) {
  constexpr size_t kSum = 148;
  constexpr size_t kSumSize = 8;
  if (head.size() < kFormHead) return false;
  int64_t all = 8 * ' ';
  int64_t all_signed = 8 * ' ';
  for (size_t i = 0; i < kFormHead; ++i) {
    if (i >= kSum && i < kSum + kSumSize) continue;
    all += static_cast<unsigned char>(head[i]);
    all_signed += static_cast<signed char>(head[i]);
  }
  const std::string_view field = head.substr(kSum, kSumSize);
  int64_t octal = 0;
  uint64_t binary = 0;  // two's complement, if the first byte marks it
  for (const char c : field) {
    if (c >= '0' && c <= '7') octal = octal * 8 + (c - '0');
  }
  for (const char c : field) binary = binary << 8 | static_cast<unsigned char>(c);
  const auto first = static_cast<unsigned char>(field.front());
  int64_t sum = octal;
  if (first == 0x80) sum = static_cast<int64_t>(binary & 0x00FFFFFFFFFFFFFF);
  if (first == 0xFF) sum = static_cast<int64_t>(binary);
  return sum == all || sum == all_signed;
}

TorchForm torch_form(std::string_view head) {
  if (head.starts_with("PK\3\4"sv)) return TorchForm::zip;
  if (is_tar(head)) return TorchForm::tar;
  const bool is_magic =
      head.starts_with(kMagicText) ||
      (head.starts_with('\x80') && head.substr(0, 32).find(kTorchMagic) != head.npos);
  return is_magic ? TorchForm::pickles : TorchForm::none;
}

TorchForm torch_form(const InputFile& file) {
  return torch_form(as_text(file.read(0, std::min<uint64_t>(file.size(), kFormHead))));
}

}  // namespace dsckpt
