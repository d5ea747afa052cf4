#include "cli/group.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/option_facts.h"
#include "cli/steps.h"
#include "dsckpt/error.h"
#include "exec/follower.h"
#include "exec/node_files.h"
#include "exec/rank_words.h"
#include "group/join.h"
#include "inspect/ask.h"

namespace dsckpt::cli {
namespace {

// In which rank 1 finds that rank 0 is lost, if another rank has: a heartbeat and a bit.
constexpr std::chrono::milliseconds kLongestWord{1500};

// The exit status is known, and this process is about to end. Launchers end all when one has ended
// with another status than 0; then theirs would be that of the signal.
void outlive_launcher() {
  std::signal(SIGTERM, SIG_IGN);
}

// What fails when all is over is nobody's concern any more.
void leave(Group& group) {
  try {
    group.close();
  } catch (const Error&) {
  }
}

int follow_first(Group& group, const Common& common, Progress& progress) {
  // Whoever stops this process stops all: rank 0 says when.
  const Writing writing;
  try {
    const int status = follow(group, common.threads, progress, answer_question);
    leave(group);
    return status;
  } catch (const IoError&) {
    // Rank 0 is lost, and one of the others says so.
    if (group.rank() == 1 && !group.is_given_up()) throw;
    // Not before it: launchers end all when one has ended.
    if (!group.is_given_up()) std::this_thread::sleep_for(kLongestWord);
    return kIo;
  }
}

// Rank 0 has the last word when all are interrupted.
void speak_for_first_alone(const GroupOptions& options) {
  static const LastWords nothing;
  if (options.engine == GroupEngine::none) return;
  const std::optional<Launch> launch = find_launch(::getenv);
  if (launch && launch->rank != 0) set_last_words(nothing);
}

}  // namespace

void add_group_options(CLI::App& app, Common& common) {
  one_of(app.add_option_function<std::string>(
             "--group",
             [&](const std::string& word) {
               common.group_options.engine = word == "none"  ? GroupEngine::none
                                             : word == "mpi" ? GroupEngine::mpi
                                             : word == "tcp" ? GroupEngine::tcp
                                                             : GroupEngine::automatic;
             },
             "How ranks that a launcher (mpirun, srun, torchrun) has started find each other:\n"
             "by mpi, by tcp, or auto; none: this process runs alone"),
         {"auto", "none", "mpi", "tcp"})
      ->type_name("HOW")
      ->default_str("auto")
      ->envname("DSCKPT_GROUP");
  in_range(
      app.add_option_function<int64_t>(
          "--rank-timeout",
          [&](int64_t seconds) { common.group_options.silence = std::chrono::seconds(seconds); },
          "With several ranks: one that is silent for so many seconds is lost (default: 600)"),
      2, 7 * 24 * 3600)
      ->type_name("SECONDS");
}

int in_group(Common& common, const std::function<int()>& body) {
  common.group_options.program = this_program();
  speak_for_first_alone(common.group_options);
  std::shared_ptr<Group> group;
  std::optional<int> status_of_first;
  try {
    Progress progress;
    const InterruptGuard guard(progress);
    group = join_group(common.group_options, ::getenv, progress.cancelled);
    if (group && group->rank() != 0) status_of_first = follow_first(*group, common, progress);
  } catch (const GroupRefused& refused) {
    return exit_code(refused.kind());
  }
  if (status_of_first) {
    outlive_launcher();
    return *status_of_first;
  }
  common.group = group;
  try {
    return body();
  } catch (const Error& error) {
    if (group && group->is_given_up()) return exit_code(error.kind());  // another speaks
    throw;
  }
}

void end_group(const Common& common, int status) {
  if (!common.group) return;
  outlive_launcher();
  common.group->send_to_all(static_cast<uint32_t>(Word::end),
                            encode_number(static_cast<uint64_t>(status)));
  leave(*common.group);
}

NodeFolders::NodeFolders(const Common& common, std::string& path,
                         std::vector<std::filesystem::path>& roots) {
  if (common.group == nullptr) return;
  std::vector<std::filesystem::path> folders{path};
  folders.insert(folders.end(), roots.begin(), roots.end());
  Progress progress;
  const InterruptGuard guard(progress);
  files_ = std::make_unique<NodeFiles>(*common.group, folders, progress);
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
