// Any bytes are a packed file, or a corrupt or unsupported one. Bytes that are packed come back; of
// a packed file with some bytes changed and the checksums made to fit again, nothing else comes.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

#include "codec/frame.h"
#include "dsckpt/error.h"
#include "io/packed_file.h"
#include "support/packed_tools.h"

namespace dsckpt {
namespace {

constexpr uint64_t kMostRead = 64 << 20;
constexpr size_t kMostPacked = 64 << 10;
constexpr int kDamages = 8;

// nullopt for an error that may be. The beginning and the end of large contents.
std::optional<std::string> content_of(const std::string& bytes) {
  try {
    const test::StoredBytes stored(bytes);
    PackedFile file(stored);
    if (file.size() <= kMostRead) return test::read_content(file);
    return test::read_content(file, 0, 1) + test::read_content(file, file.size() - 1, 1);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported) std::abort();
    return std::nullopt;
  }
}

std::string packed(const std::string& content, PlaneLayout layout, size_t frame_size) {
  static FrameEncoder encoder(kDefaultPackLevel);
  std::vector<test::FrameBytes> frames;
  for (size_t at = 0; at < content.size(); at += frame_size) {
    const std::string part = content.substr(at, frame_size);
    frames.push_back({part, std::string(as_text(encoder.encode(as_byte_span(part), layout)))});
  }
  return test::packed_bytes(frames);
}

uint64_t number_at(const std::string& bytes, uint64_t at) {
  return load_le<uint64_t>(as_byte_span(bytes).data() + at);
}

// Makes the checksums of the frames as they are stored, and of the index, fit.
void seal(std::string& bytes) {
  const size_t footer = bytes.size() - 32;
  const uint64_t index = number_at(bytes, footer);
  if (index > footer || footer - index < 40) return;
  for (uint64_t entry = index + 40; entry + 32 <= footer; entry += 32) {
    const uint64_t offset = number_at(bytes, entry);
    const uint64_t size = number_at(bytes, entry + 8) & 0xFFFFFFFF;
    if (offset > bytes.size() || size > bytes.size() - offset) continue;
    store_le(reinterpret_cast<std::byte*>(bytes.data() + entry + 24),
             test::hash_of(std::string_view(bytes).substr(offset, size)));
  }
  store_le(reinterpret_cast<std::byte*>(bytes.data() + footer + 16),
           test::hash_of(std::string_view(bytes).substr(index, footer + 16 - index)));
}

void decode(const std::string& frame, size_t content_size) {
  FrameDecoder decoder;
  std::vector<std::byte> content(content_size);
  try {
    decoder.decode(as_byte_span(frame), content);
  } catch (const CorruptError&) {
  }
}

}  // namespace
}  // namespace dsckpt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  static_cast<void>(content_of(bytes));

  const std::string content = bytes.substr(0, kMostPacked);
  std::mt19937_64 random(test::hash_of(content));
  decode(content, random() % (2 * content.size() + 1));
  const PlaneLayout layout = test::kLayouts[random() % test::kLayouts.size()];
  const std::string whole = packed(content, layout, content.size() / 3 + 1);
  if (content_of(whole) != content) std::abort();
  for (int i = 0; i < kDamages; ++i) {
    std::string damaged = whole;
    // Most of what matters is at the end.
    const size_t from = i % 2 == 0 ? 0 : whole.size() - std::min<size_t>(whole.size(), 200);
    for (uint64_t changes = random() % 3; changes-- > 0;) {
      damaged[from + random() % (damaged.size() - from)] = static_cast<char>(random());
    }
    seal(damaged);
    const auto became = content_of(damaged);
    if (became && *became != content) std::abort();
  }
  return 0;
}
