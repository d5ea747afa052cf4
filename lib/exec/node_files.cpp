#include "exec/node_files.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/rank_words.h"
#include "io/far_files.h"
#include "io/folder.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kWaitForAnswers{100};

GroupIdentity identity_of(const Group& group) {
  return {group.size(), group.secret().program};
}

// What comes back for `said` from each rank but 0, by rank.
std::map<int, std::string> answers_of_all(Group& group, Word said, const std::string& bytes,
                                          Word expected, const Progress& progress) {
  group.send_to_all(static_cast<uint32_t>(said), bytes);
  std::map<int, std::string> answers;
  while (answers.size() + 1 < static_cast<size_t>(group.size())) {
    if (progress.cancelled) throw InterruptedError();
    const std::optional<Message> message = group.receive(kWaitForAnswers);
    if (!message) continue;
    if (static_cast<Word>(message->kind) == Word::failed) {
      throw_failure(message->bytes, group.member(message->from).name());
    }
    if (static_cast<Word>(message->kind) != expected) {
      throw CorruptError({}, group.member(message->from).name() + " said what nobody expects");
    }
    answers.emplace(message->from, message->bytes);
  }
  return answers;
}

void write_place(VarintWriter& writer, const FileServerPlace& place) {
  writer.number(static_cast<uint64_t>(place.member.rank));
  writer.text(place.member.host);
  writer.number(place.port);
  writer.number(place.addresses.size());
  for (const std::string& address : place.addresses) writer.text(address);
}

FileServerPlace read_place(VarintReader& reader) {
  FileServerPlace place;
  place.member.rank = static_cast<int>(reader.number());
  place.member.host = reader.text();
  place.port = static_cast<uint16_t>(reader.number());
  place.addresses.resize(reader.count());
  for (std::string& address : place.addresses) address = reader.text();
  return place;
}

std::string place_text(const FileServer& server, const Member& member) {
  VarintWriter writer;
  write_place(writer, {member, own_addresses(), server.port()});
  return writer.take();
}

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

NodeFiles::NodeFiles(Group& group, const std::vector<fs::path>& folders, Progress& progress)
    : group_(group), progress_(progress) {
  VarintWriter question;
  question.number(folders.size());
  for (const fs::path& folder : folders) question.text(fs::absolute(folder).native());
  const std::map<int, std::string> answers =
      answers_of_all(group, Word::look, question.take(), Word::seen, progress);
  // Several ranks of a node see one folder.
  using Seen = std::tuple<std::string, size_t, uint64_t, int64_t>;
  std::set<Seen> known;
  std::vector<std::pair<int, size_t>> others;  // rank and folder
  std::vector<FileLook> own;
  for (const fs::path& folder : folders) own.push_back(look_at(folder));
  for (const auto& [rank, bytes] : answers) {
    VarintReader reader(bytes);
    for (size_t i = 0; i < folders.size(); ++i) {
      const FileLook look = read_look(reader);
      const bool same = look.inode == own[i].inode && look.modified == own[i].modified;
      if (!look.is_there || !look.is_folder || (same && own[i].is_there)) continue;
      if (known.emplace(group.member(rank).host, i, look.inode, look.modified).second) {
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
    const std::vector<ListedFile> there = group.files()->list(rank, folder);
    if (own[i].is_folder && are_the_same(there, here[i])) continue;
    stand_in(rank, folder, there);
  }
}

NodeFiles::~NodeFiles() {
  for (const fs::path& mounted : mounted_) unmount_far(mounted);
  group_.set_files(nullptr);
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

void NodeFiles::open_service() {
  server_ =
      std::make_unique<FileServer>(group_.secret().token, identity_of(group_), group_.member(0));
  std::vector<FileServerPlace> places{{group_.member(0), own_addresses(), server_->port()}};
  for (const auto& [rank, bytes] :
       answers_of_all(group_, Word::serve, {}, Word::serving, progress_)) {
    VarintReader reader(bytes);
    places.push_back(read_place(reader));
  }
  VarintWriter writer;
  writer.number(places.size());
  for (const FileServerPlace& place : places) write_place(writer, place);
  group_.send_to_all(static_cast<uint32_t>(Word::servers), writer.take());
  group_.set_files(std::make_shared<FileClient>(group_.secret().token, identity_of(group_),
                                                group_.member(0), std::move(places),
                                                group_.silence()));
}

void NodeFiles::stand_in(int rank, const fs::path& folder, const std::vector<ListedFile>& files) {
  if (folder_.empty()) {
    folder_ = make_temporary_folder("dsckpt-nodes-");
  }
  const fs::path machine = folder_ / std::to_string(rank);
  if (std::find(mounted_.begin(), mounted_.end(), machine) == mounted_.end()) {
    mount_far(machine, rank, group_.member(rank).host + ":",
              std::make_shared<RankReader>(group_.files(), rank));
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

bool NodeFilesThere::answer(const Message& message) {
  const auto say = [&](Word word, std::string bytes) {
    group_.send(0, static_cast<uint32_t>(word), std::move(bytes));
  };
  const Member& self = group_.member(group_.rank());
  VarintReader reader(message.bytes);
  switch (static_cast<Word>(message.kind)) {
    case Word::look: {
      VarintWriter writer;
      for (size_t left = reader.count(); left > 0; --left) {
        write_look(writer, look_at(reader.text()));
      }
      say(Word::seen, writer.take());
      return true;
    }
    case Word::serve:
      try {
        if (!server_) {
          server_ = std::make_unique<FileServer>(group_.secret().token, identity_of(group_), self);
        }
        say(Word::serving, place_text(*server_, self));
      } catch (const Error& error) {
        say(Word::failed, encode_failure(error));
      }
      return true;
    case Word::servers: {
      std::vector<FileServerPlace> places;
      for (size_t left = reader.count(); left > 0; --left) places.push_back(read_place(reader));
      group_.set_files(std::make_shared<FileClient>(group_.secret().token, identity_of(group_),
                                                    self, std::move(places), group_.silence()));
      return true;
    }
    default:
      return false;
  }
}

}  // namespace dsckpt
