// What the processes of a group say to each other, each by all of its readers. What is read is
// written again as it was.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "dsckpt/error.h"
#include "exec/portion.h"
#include "exec/rank_words.h"
#include "fuzz/refuse_as.h"
#include "group/rendezvous.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto refuse_or = [](auto&& read) { refuse_as<ErrorKind::corrupt>(read); };
  // Numbers can be written in several ways, so that only the second time must be like the first.
  const auto read_twice = [&](auto read) {
    refuse_or([&] {
      const std::string once = read(bytes).encode();
      if (read(once).encode() != once) std::abort();
    });
  };
  read_twice([](std::string_view text) { return Portion::decode(text); });
  read_twice([](std::string_view text) { return PortionResult::decode(text); });
  read_twice([](std::string_view text) { return RankJob::decode(text); });
  refuse_or([&] { static_cast<void>(decode_number(bytes)); });
  static_cast<void>(Rendezvous::parse(std::string(bytes)));
  return 0;
}
