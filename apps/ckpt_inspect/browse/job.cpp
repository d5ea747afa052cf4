#include "ckpt_inspect/browse/job.h"

#include <chrono>
#include <new>
#include <utility>

#include "base/text.h"
#include "cli/terminal.h"
#include "dsckpt/error.h"

namespace dsckpt::inspect {
namespace {

Lines message(const std::string& what, const std::string& hint) {
  return [what, hint](size_t columns) {
    std::vector<std::string> lines = cli::wrapped(printable(what, Newlines::keep), columns);
    if (hint.empty()) return lines;
    const std::vector<std::string> more = cli::wrapped("hint: " + printable(hint), columns);
    lines.insert(lines.end(), more.begin(), more.end());
    return lines;
  };
}

}  // namespace

PageJob::PageJob(std::function<Lines(Progress&)> work)
    : thread_([this, work = std::move(work)] {
        try {
          lines_ = work(progress_);
        } catch (const InterruptedError&) {
          lines_ = message("stopped", "");
        } catch (const Error& error) {
          lines_ = message("error: " + std::string(error.what()), error.hint());
        } catch (const std::bad_alloc&) {
          lines_ = message("error: out of memory", "");
        } catch (const std::exception& error) {
          lines_ = message("error: " + std::string(error.what()), "");
        }
        done_ = true;
      }) {}

PageJob::~PageJob() {
  cancel();
  thread_.join();
}

bool PageJob::done_within(int milliseconds) const {
  for (int waited = 0; waited < milliseconds && !done_; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done_;
}

std::string PageJob::progress_text() const {
  const uint64_t total = progress_.bytes_total;
  if (total == 0) return "";
  return human_bytes(progress_.bytes_done) + " of " + human_bytes(total);
}

Lines PageJob::take() {
  return std::move(lines_);
}

}  // namespace dsckpt::inspect
