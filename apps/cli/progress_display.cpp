#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "report/report.h"

namespace dsckpt::cli {

struct ProgressDisplay::Impl {
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kBar = 30;
  static constexpr size_t kLeastBar = 5;
  static constexpr double kQuietSeconds = 0.5;  // most checkpoints open faster

  Impl(const Progress& of, const Meeting* others, ProgressMode mode, bool is_shown)
      : progress(of),
        ranks(others),
        shown(is_shown),
        as_json(mode == ProgressMode::json),
        always(mode == ProgressMode::always) {}

  const Progress& progress;
  const Meeting* const ranks;  // nullptr: this process runs alone
  const bool shown;            // otherwise only when somebody asks
  const bool as_json;
  const bool always;
  Clock::time_point start = Clock::now();
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  size_t drawn = 0;  // columns of the current line
  ProgressRequests requests;
  std::thread thread;

  void loop() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::milliseconds(170), [&] { return stop; })) {
      if (shown) show();
      if (requests.take()) answer();
    }
    if (!shown) return;
    if (progress.bytes_total == 0) return wipe();
    if (as_json || always || drawn > 0) show();
    if (drawn > 0) std::fputs("\n", stderr);
  }

  void wipe() {
    if (drawn == 0) return;
    std::fputs(("\r" + std::string(drawn, ' ') + "\r").c_str(), stderr);
    std::fflush(stderr);
    drawn = 0;
  }

  // Prints a line that is not overwritten.
  void answer() {
    if (as_json && shown) return;  // the lines are printed anyway
    if (drawn > 0) std::fputs("\n", stderr);
    drawn = 0;
    const Facts now = facts();
    const std::string text = now.total > 0              ? now.text()
                             : progress.files_total > 0 ? opening().text()
                                                        : "nothing is written yet";
    std::fputs((text + "\n").c_str(), stderr);
    std::fflush(stderr);
  }

  struct Facts {
    uint64_t done;
    uint64_t total;
    double rate;  // bytes a second
    double left;  // seconds
    std::optional<Member> slowest;
    double fraction() const { return static_cast<double>(done) / static_cast<double>(total); }
    std::string text() const {
      std::string percent = whole(fraction() * 100);
      percent.insert(0, 3 - std::min<size_t>(3, percent.size()), ' ');
      return percent + " %  " + human_bytes(done) + " of " + human_bytes(total) + "  " +
             human_bytes(static_cast<uint64_t>(rate)) + "/s  " + whole(left) + " s left" +
             (slowest ? "  " + slowest->name() + " is slowest" : "");
    }
  };

  // The opened files, until there are bytes.
  struct Opening {
    uint64_t done;
    uint64_t total;
    double seconds;
    bool is_done() const { return done >= total; }
    double left() const {
      return done == 0 ? 0
                       : seconds / static_cast<double>(done) * static_cast<double>(total - done);
    }
    std::string text() const {
      if (is_done()) return "planning, " + grouped_count(total, "file");
      return grouped(done) + " of " + grouped_count(total, "file") + " opened" +
             (done == 0 ? "" : "  " + whole(left()) + " s left");
    }
  };

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  Opening opening() const {
    const uint64_t done = progress.files_done;
    return {done, std::max<uint64_t>(progress.files_total, done), seconds()};
  }

  void show_opening() {
    if (progress.files_total == 0 || seconds() < kQuietSeconds) return;
    const Opening now = opening();
    if (!as_json) {
      return draw(static_cast<double>(now.done) / static_cast<double>(now.total), now.text());
    }
    std::cerr << dump({{"schema", kJsonSchema},
                       {"type", "opening"},
                       {"data",
                        {{"files_done", now.done},
                         {"files_total", now.total},
                         {"seconds_left", now.left()}}}})
              << "\n";
  }

  Facts facts() const {
    const uint64_t total = progress.bytes_total;
    const uint64_t done = progress.bytes_done;
    const double passed = seconds();
    const double rate = passed > 0 ? static_cast<double>(done) / passed : 0;
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    const int slowest = progress.slowest_rank;
    return {
        done, total, rate, left,
        ranks != nullptr && slowest >= 0 ? std::optional(ranks->member(slowest)) : std::nullopt};
  }

  void show() {
    const Facts now = facts();
    if (now.total == 0) return show_opening();
    if (!as_json) return draw(now.fraction(), now.text());
    nlohmann::json data{{"bytes_done", now.done},
                        {"bytes_total", now.total},
                        {"bytes_per_second", static_cast<uint64_t>(now.rate)},
                        {"seconds_left", now.left}};
    if (now.slowest) {
      data["slowest_rank"] = {{"rank", now.slowest->rank}, {"host", now.slowest->host}};
    }
    std::cerr << dump({{"schema", kJsonSchema}, {"type", "progress"}, {"data", std::move(data)}})
              << "\n";
  }

  // Draws a line that the next one overwrites. The last column of the terminal stays free, since
  // some terminals begin a new line after it.
  void draw(double fraction, std::string line) {
    const Terminal terminal = Terminal::of_stderr();
    const size_t width = terminal.tables ? terminal.width - 1 : std::string::npos;
    const size_t bar = std::min<size_t>(kBar, width - std::min(width, line.size() + 3));
    if (bar >= kLeastBar) {
      const auto filled = static_cast<size_t>(fraction * static_cast<double>(bar));
      line = "[" + std::string(filled, '#') + std::string(bar - filled, '.') + "] " + line;
    }
    line = line.substr(0, width);
    const size_t size = line.size();
    if (size < drawn) line += std::string(std::min(drawn, width) - std::min(size, width), ' ');
    std::fputs(("\r" + line).c_str(), stderr);
    std::fflush(stderr);
    drawn = size;
  }

  static std::string whole(double number) { return std::to_string(std::llround(number)); }
};

ProgressDisplay::ProgressDisplay(const Progress& progress, const Common& common) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1 && !common.quiet;
  const bool shown = common.progress != ProgressMode::never &&
                     (common.progress != ProgressMode::automatic || terminal);
  impl_ = std::make_unique<Impl>(progress, common.ranks.get(), common.progress, shown);
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop(); });
}

ProgressDisplay::~ProgressDisplay() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

}  // namespace dsckpt::cli
