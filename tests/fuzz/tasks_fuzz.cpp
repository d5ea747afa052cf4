// The files that processes of a run leave for each other, each by all of its readers. A file that
// is read is written again as it was.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/piece_task.h"
#include "exec/portion.h"
#include "exec/rank_job.h"
#include "fuzz/refuse_as.h"
#include "inspect/questions.h"
#include "nodes/file_service.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto refuse_or = [](auto&& read) { refuse_as<ErrorKind::corrupt>(read); };
  // Numbers can be written in several ways, so that only the second time must be like the first.
  const auto write_twice = [&](auto&& again) {
    refuse_or([&] {
      const std::string once = again(bytes);
      if (again(once) != once) std::abort();
    });
  };
  write_twice([](std::string_view text) { return Portion::decode(text).encode(); });
  write_twice([](std::string_view text) { return PortionResult::decode(text).encode(); });
  write_twice([](std::string_view text) { return RankJob::decode(text).encode(); });
  // A question, and the answer about one part.
  const auto ask_twice = [&]<typename Question>(const Question*) {
    write_twice([](std::string_view text) { return encoded(decoded<Question>(text)); });
    write_twice([](std::string_view text) {
      VarintReader reader(text);
      VarintWriter writer;
      typename Question::Part part;
      Question::fields_of_part(reader, part);
      Question::fields_of_part(writer, part);
      return writer.take();
    });
  };
  ask_twice(static_cast<const StatisticsQuestion*>(nullptr));
  ask_twice(static_cast<const DifferenceQuestion*>(nullptr));
  ask_twice(static_cast<const NonfiniteQuestion*>(nullptr));
  ask_twice(static_cast<const NotRoundedQuestion*>(nullptr));
  write_twice([](std::string_view text) { return encoded(decoded<FileLook>(text)); });
  write_twice([](std::string_view text) { return encoded(decoded<FileServerPlace>(text)); });
  write_twice([](std::string_view text) { return PieceTask::decode(text).encode(); });
  return 0;
}
