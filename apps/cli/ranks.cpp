#include "cli/ranks.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "base/launch.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/option_facts.h"
#include "cli/steps.h"
#include "dsckpt/error.h"
#include "exec/follower.h"
#include "exec/node_files.h"
#include "inspect/ask.h"
#include "io/far_files.h"

namespace dsckpt::cli {
namespace {

// In which rank 1 finds that rank 0 is lost, if another rank has.
constexpr std::chrono::milliseconds kLongestWord{2500};

// The exit status is known, and this process is about to end. Launchers end all when one has ended
// with a status other than 0; then theirs would be that of the signal.
void outlive_launcher() {
  std::signal(SIGTERM, SIG_IGN);
}

int follow_first(const Launch& launch, const Common& common) {
  // Rank 0 has the last word when all are interrupted.
  static const LastWords nothing;
  set_last_words(nothing);
  Progress interrupted;
  const InterruptGuard guard(interrupted);
  std::optional<Attendance> attendance;
  int status = kInterrupted;
  try {
    const Writing writing;
    attendance.emplace(launch, common.meeting, ::getenv, interrupted.cancelled);
    status = follow(*attendance, launch.rank, common.meeting, common.threads, answer_question);
  } catch (const InterruptedError&) {  // the others do its work
  } catch (const IoError&) {
    // Rank 0 was not found, or it is lost, and one of the others says so.
    if (!attendance || launch.rank == 1) throw;
    // Not before it: launchers end all when one has ended.
    std::this_thread::sleep_for(kLongestWord);
    status = kIo;
  }
  outlive_launcher();
  return status;
}

}  // namespace

void add_rank_options(CLI::App& app, Common& common) {
  one_of(app.add_option_function<std::string>(
             "--group", [&](const std::string& word) { common.meeting.alone = word == "none"; },
             "auto: run with the other ranks that a launcher (mpirun, srun, torchrun) has\n"
             "started; none: this process runs alone"),
         {"auto", "none"})
      ->type_name("HOW")
      ->default_str("auto")
      ->envname("DSCKPT_GROUP");
  in_range(app.add_option_function<int64_t>(
               "--rank-timeout",
               [&](int64_t seconds) { common.meeting.silence = std::chrono::seconds(seconds); },
               "With several ranks: the others do the work of one that is silent for so many "
               "seconds\n(default: 60)"),
           2, 7 * 24 * 3600)
      ->type_name("SECONDS");
}

int with_ranks(Common& common, const std::function<int()>& body) {
  common.meeting.program = this_program();
  const std::optional<Launch> launch = common.meeting.alone ? std::nullopt : find_launch(::getenv);
  if (!launch) return body();
  if (launch->rank != 0) return follow_first(*launch, common);
  common.ranks = std::make_shared<Meeting>(*launch, common.meeting, ::getenv);
  return body();
}

void end_ranks(const Common& common, int status) {
  if (!common.ranks) return;
  outlive_launcher();
  common.ranks->end(status);
}

NodeFolders::NodeFolders(const Common& common, std::string& path,
                         std::vector<std::filesystem::path>& roots) {
  if (common.ranks == nullptr) return;
  std::vector<std::filesystem::path> folders{path};
  folders.insert(folders.end(), roots.begin(), roots.end());
  if (std::any_of(folders.begin(), folders.end(), is_far)) return;  // these are no node's own
  Progress progress;
  const InterruptGuard guard(progress);
  files_ = std::make_unique<NodeFiles>(*common.ranks, folders, progress);
  const std::vector<std::filesystem::path>& others = files_->roots();
  if (others.empty()) return;
  std::error_code failed;
  std::erase_if(roots, [&](const std::filesystem::path& root) {
    return !std::filesystem::exists(root, failed);
  });
  roots.insert(roots.end(), others.begin(), others.end());
  if (std::filesystem::exists(path, failed)) return;
  path = roots.front().string();
  roots.erase(roots.begin());
}

NodeFolders::~NodeFolders() = default;

}  // namespace dsckpt::cli
