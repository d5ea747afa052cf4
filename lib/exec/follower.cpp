#include "exec/follower.h"

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dsckpt/error.h"
#include "exec/answering.h"
#include "exec/node_files.h"
#include "exec/step_files.h"
#include "exec/step_work.h"
#include "nodes/file_service.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;

void work_for_first(const fs::path& path, int rank, const MeetingOptions& options, unsigned threads,
                    const AnswerTask& questions, Attendance& attendance) {
  StepPlan plan;
  std::optional<Folder> folder;
  try {
    folder = StagingPlace{.path = path}.open();
    plan = load_plan(*folder);
  } catch (const IoError&) {
    if (!folder || !has_plan(*folder)) return;  // all is done
    throw;
  }
  WorkingRank self{.number = rank};
  if (!plan.job.servers.empty()) self.files = FileClient::of(plan.job.servers, options.silence);
  attendance.on_stop([files = self.files](bool stopped) {
    if (files != nullptr) files->stop(stopped);
  });
  work_on_steps(*folder, options.program,
                {.threads = threads,
                 .share = StepShare{static_cast<size_t>(rank)},
                 .answer = answering(questions),
                 .rank = &self},
                attendance.progress());
}

}  // namespace

int follow(Attendance& attendance, int rank, const MeetingOptions& options, unsigned threads,
           const AnswerTask& answer) {
  std::unique_ptr<FileServer> server;
  for (;;) {
    const Attendance::Order order = attendance.next();
    try {
      std::string said;
      switch (order.word) {
        case Word::nothing:
          break;
        case Word::look:
          said = looks_of(order.text);
          break;
        case Word::serve:
          server = std::make_unique<FileServer>(token_in(order.text), rank);
          said = place_text(*server, rank);
          break;
        case Word::work:
          work_for_first(order.text, rank, options, threads, answer, attendance);
          break;
        case Word::end:
          attendance.answer("");
          return std::atoi(order.text.c_str());
      }
      attendance.answer(said);
    } catch (const InterruptedError&) {  // next() says by whom
      attendance.answer("");
    } catch (const std::exception& failure) {
      attendance.fail(failure);
    }
  }
}

}  // namespace dsckpt
