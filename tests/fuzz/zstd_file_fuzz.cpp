// Any bytes are a zstd file, or a corrupt or unsupported one. Bytes that zstd compressed come back;
// of frames with checksums of which some bytes were changed nothing else comes.
#include <zstd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

#include "dsckpt/error.h"
#include "io/zstd_file.h"
#include "support/packed_tools.h"

namespace dsckpt {
namespace {

constexpr uint64_t kMostRead = 64 << 20;
constexpr size_t kMostCompressed = 64 << 10;
constexpr int kDamages = 8;

// nullopt for an error that may be. The beginning of large contents.
std::optional<std::string> content_of(const std::string& bytes, bool backwards) {
  try {
    const test::StoredBytes stored(bytes, "x.zst");
    ZstdFile file(stored);
    const uint64_t size = std::min(file.size(), kMostRead);
    if (!backwards) return test::read_content(file, 0, size);
    std::string content;
    for (uint64_t end = size; end > 0;) {
      const uint64_t part = std::min<uint64_t>(end, 1 + size / 3);
      end -= part;
      content.insert(0, test::read_content(file, end, part));
    }
    return content;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported) std::abort();
    return std::nullopt;
  }
}

class Compressor {
 public:
  Compressor() { ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1); }
  ~Compressor() { ZSTD_freeCCtx(context_); }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  std::string frame(const std::string& content, bool with_size) {
    ZSTD_CCtx_setParameter(context_, ZSTD_c_contentSizeFlag, with_size);
    std::string out(ZSTD_compressBound(content.size()), '\0');
    out.resize(ZSTD_compress2(context_, out.data(), out.size(), content.data(), content.size()));
    return out;
  }

 private:
  ZSTD_CCtx* context_ = ZSTD_createCCtx();
};

std::string compressed(const std::string& content, bool with_sizes, bool with_table) {
  static Compressor compressor;
  std::string out;
  std::string table;
  uint32_t frames = 0;
  for (size_t at = 0; at < content.size(); at += content.size() / 3 + 1) {
    const std::string part = content.substr(at, content.size() / 3 + 1);
    const std::string frame = compressor.frame(part, with_sizes);
    append_le(table, static_cast<uint32_t>(frame.size()));
    append_le(table, static_cast<uint32_t>(part.size()));
    out += frame;
    ++frames;
  }
  if (!with_table && frames > 0) return out;
  append_le(out, 0x184D2A5E);
  append_le(out, static_cast<uint32_t>(table.size() + 9));
  append_le(table, frames);
  table += '\0';
  append_le(table, 0x8F92EAB1);
  return out + table;
}

}  // namespace
}  // namespace dsckpt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  static_cast<void>(content_of(bytes, false));

  const std::string content = bytes.substr(0, kMostCompressed);
  std::mt19937_64 random(test::hash_of(content));
  for (const bool with_table : {false, true}) {
    const std::string whole = compressed(content, random() % 2 == 0, with_table);
    for (const bool backwards : {false, true}) {
      if (content_of(whole, backwards) != content) std::abort();
    }
    for (int i = 0; i < kDamages; ++i) {
      std::string damaged = whole;
      for (uint64_t changes = random() % 3; changes-- > 0;) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      const auto became = content_of(damaged, random() % 2 == 0);
      if (became && *became != content) std::abort();
    }
  }
  return 0;
}
