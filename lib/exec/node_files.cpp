#include "exec/node_files.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/host.h"
#include "base/varint.h"
#include "dsckpt/error.h"
#include "io/far_files.h"
#include "io/folder.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Which inodes they have depends on the file system's client.
bool are_the_same(const std::vector<ListedFile>& a, const std::vector<ListedFile>& b) {
  const auto files = [](const std::vector<ListedFile>& all) {
    std::set<std::tuple<std::string, uint64_t, int64_t>> found;
    for (const ListedFile& file : all) {
      if (!file.look.is_folder) found.emplace(file.path, file.look.size, file.look.modified);
    }
    return found;
  };
  return files(a) == files(b);
}

}  // namespace

void RankReader::read_at(const fs::path& path, uint64_t size, int64_t modified, uint64_t offset,
                         std::span<std::byte> out) {
  client_->read(rank_, path, size, modified, offset, out);
}

NodeFiles::NodeFiles(Meeting& ranks, const std::vector<fs::path>& folders, Progress& progress)
    : ranks_(ranks), progress_(progress) {
  std::vector<fs::path> question;
  for (const fs::path& folder : folders) question.push_back(fs::absolute(folder));
  const std::map<int, std::string> answers = ranks.ask(Word::look, encoded(question), progress);
  // Several ranks of a node see one folder.
  using Seen = std::tuple<std::string, size_t, uint64_t, int64_t>;
  std::set<Seen> known;
  std::vector<std::pair<int, size_t>> others;  // rank and folder
  std::vector<FileLook> own;
  for (const fs::path& folder : folders) own.push_back(look_at(folder));
  for (const auto& [rank, bytes] : answers) {
    const auto looks = decoded<std::vector<FileLook>>(bytes);
    for (size_t i = 0; i < std::min(looks.size(), own.size()); ++i) {
      const FileLook& look = looks[i];
      const bool same = look.inode == own[i].inode && look.modified == own[i].modified;
      if (!look.is_there || !look.is_folder || (same && own[i].is_there)) continue;
      if (known.emplace(ranks.member(rank).host, i, look.inode, look.modified).second) {
        others.emplace_back(rank, i);
      }
    }
  }
  if (others.empty()) return;
  open_service();
  std::map<size_t, std::vector<ListedFile>> here;
  for (const auto& [rank, i] : others) {
    const fs::path folder = fs::absolute(folders[i]);
    if (own[i].is_folder && !here.contains(i)) here.emplace(i, list_below(folder));
    const std::vector<ListedFile> there = ranks.files()->list(rank, folder);
    if (own[i].is_folder && are_the_same(there, here[i])) continue;
    stand_in(rank, folder, there);
  }
}

NodeFiles::~NodeFiles() {
  for (const fs::path& mounted : mounted_) unmount_far(mounted);
  ranks_.set_files(nullptr, "");
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

void NodeFiles::open_service() {
  const Token token = new_token();
  const std::string token_text(as_text(token));
  server_ = std::make_unique<FileServer>(token, 0);
  std::string servers = token_text + place_text(*server_, 0);
  for (const auto& [rank, place] : ranks_.ask(Word::serve, token_text, progress_)) {
    servers += place;
  }
  ranks_.set_files(FileClient::of(servers, ranks_.silence()), servers);
}

void NodeFiles::stand_in(int rank, const fs::path& folder, const std::vector<ListedFile>& files) {
  if (folder_.empty()) {
    folder_ = make_temporary_folder("dsckpt-nodes-");
  }
  const fs::path machine = folder_ / std::to_string(rank);
  if (std::find(mounted_.begin(), mounted_.end(), machine) == mounted_.end()) {
    mount_far(machine, rank, ranks_.member(rank).host + ":",
              std::make_shared<RankReader>(ranks_.files(), rank));
    mounted_.push_back(machine);
  }
  const fs::path root = machine / folder.relative_path();
  std::error_code failed;
  fs::create_directories(root, failed);
  for (const ListedFile& file : files) {
    const fs::path path = root / file.path;
    if (file.look.is_folder) {
      fs::create_directory(path, failed);
    } else {
      make_stand_in(path, file.look.size, file.look.modified);
    }
    if (failed) throw IoError({.file = path.string()}, "cannot create", failed.value());
  }
  roots_.push_back(root);
}

std::string looks_of(const std::string& folders) {
  std::vector<FileLook> looks;
  for (const fs::path& folder : decoded<std::vector<fs::path>>(folders)) {
    looks.push_back(look_at(folder));
  }
  return encoded(looks);
}

Token token_in(const std::string& text) {
  Token token;
  const ByteSpan bytes = as_byte_span(text).first(token.size());
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

std::string place_text(const FileServer& server, int rank) {
  return encoded(FileServerPlace{{rank, host_name()}, own_addresses(), server.port()});
}

}  // namespace dsckpt
