#include "nodes/file_service.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/file_descriptor.h"
#include "base/file_time.h"
#include "base/kernels.h"
#include "base/varint.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestConnect{2000};
constexpr milliseconds kLongestGreeting{10'000};
constexpr milliseconds kLongestAnswer{60'000};
constexpr milliseconds kLookAgain{100};
constexpr size_t kLongestRequest = 64 << 10;
// The most that one answer holds of a file; a listing may be longer.
constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kLongestListing = size_t{1} << 30;

constexpr uint64_t kList = 1;
constexpr uint64_t kReadPiece = 2;
enum Status : uint64_t { kDone = 0, kRefused = 1 };

FileLook look_of(const struct stat& s) {
  return {.is_there = true,
          .is_folder = S_ISDIR(s.st_mode),
          .size = static_cast<uint64_t>(s.st_size),
          .inode = s.st_ino,
          .modified = modified_ns(s)};
}

// A text behind its CRC32.
std::string with_crc(const std::string& text) {
  std::string all;
  append_le<uint32_t>(all, crc32(0, as_byte_span(text)));
  return all + text;
}

// Nothing if it arrived with another one.
std::optional<std::string> without_crc(const std::string& all) {
  if (all.size() < sizeof(uint32_t)) return std::nullopt;
  std::string text = all.substr(sizeof(uint32_t));
  const auto crc = load_le<uint32_t>(as_byte_span(all).data());
  return crc == crc32(0, as_byte_span(text)) ? std::optional(std::move(text)) : std::nullopt;
}

// The file that a connection reads, which stays open from one request to the next.
class OpenFile {
 public:
  std::string read(const std::string& path, uint64_t size, int64_t modified, uint64_t offset,
                   uint64_t bytes) {
    if (path != path_) open(path);
    struct stat now {};
    if (::fstat(file_.get(), &now) != 0) throw IoError({.file = path}, "cannot stat", errno);
    const FileLook look = look_of(now);
    if (!S_ISREG(now.st_mode) || look.size != size || look.modified != modified) {
      throw IoError({.file = path}, "changed while it was being read", 0);
    }
    std::string out(std::min<uint64_t>(bytes, kPieceBytes), '\0');
    for (size_t done = 0; done < out.size();) {
      const ssize_t got = ::pread(file_.get(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw IoError({.file = path, .offset = offset + done}, "cannot read", errno);
      if (got == 0) throw IoError({.file = path, .offset = offset + done}, "file ends early", 0);
      done += static_cast<size_t>(got);
    }
    return out;
  }

 private:
  void open(const std::string& path) {
    path_.clear();
    file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file_) throw IoError({.file = path}, "cannot open", errno);
    path_ = path;
  }

  FileDescriptor file_;
  std::string path_;
};

std::string what_is_asked(const std::string& request, OpenFile& file) {
  VarintReader reader(request);
  VarintWriter answer;
  try {
    const uint64_t what = reader.number();
    const std::string path = reader.text();
    answer.number(kDone);
    if (what == kList) {
      answer(list_below(path));
    } else if (what == kReadPiece) {
      uint64_t size = 0, offset = 0, wanted = 0;
      int64_t modified = 0;
      reader(size, modified, offset, wanted);
      answer.text(file.read(path, size, modified, offset, wanted));
    } else {
      throw CorruptError({}, "an unknown request");
    }
    return answer.take();
  } catch (const Error& error) {
    VarintWriter failure;
    failure.number(kRefused);
    failure.text(error.message());
    failure.number(static_cast<uint64_t>(error.errno_value()));
    return failure.take();
  }
}

}  // namespace

FileLook look_at(const fs::path& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? look_of(found) : FileLook{};
}

std::vector<ListedFile> list_below(const fs::path& folder) {
  std::error_code failed;
  std::vector<ListedFile> found;
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink,
                                      failed);
  for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
    const FileLook look = look_at(it->path());
    if (look.is_there) found.push_back({it->path().lexically_relative(folder).string(), look});
  }
  if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  return found;
}

FileServer::FileServer(const Token& token, int rank)
    : token_(token), rank_(rank), listening_(listen()), accepting_([this] { accept_all(); }) {}

FileServer::~FileServer() {
  stop_ = true;
  accepting_.join();
  for (std::thread& reader : readers_) reader.join();
}

void FileServer::accept_all() {
  while (!stop_) {
    FileDescriptor socket = accept_from(listening_, kLookAgain);
    if (socket.get() < 0) continue;
    const int fd = socket.get();
    try {
      readers_.emplace_back([this, fd] { serve(FileDescriptor(fd)); });
      socket.release();
    } catch (const std::system_error&) {  // no thread: it may come again
    }
  }
}

void FileServer::serve(FileDescriptor socket) const {
  try {
    if (!welcome(socket.get(), token_, rank_, kLongestGreeting)) return;
    OpenFile file;
    while (!stop_) {
      pollfd polled{socket.get(), POLLIN, 0};
      if (::poll(&polled, 1, static_cast<int>(kLookAgain.count())) != 1) continue;
      Talk talk(socket.get(), kLongestAnswer);
      std::string all;
      if (!talk.hear_text(all, kLongestRequest)) return;
      const std::optional<std::string> request = without_crc(all);
      if (!request || !talk.say_text(with_crc(what_is_asked(*request, file)))) return;
    }
  } catch (const std::exception&) {  // whoever is there sees the connection closed
  }
}

FileClient::FileClient(const Token& token, std::vector<FileServerPlace> places,
                       milliseconds silence)
    : token_(token), silence_(silence) {
  for (FileServerPlace& place : places) {
    const int rank = place.member.rank;
    servers_.emplace(rank, Server{std::move(place), {}});
  }
}

std::shared_ptr<FileClient> FileClient::of(const std::string& servers, milliseconds silence) {
  Token token;
  const ByteSpan bytes = as_byte_span(servers);
  std::copy_n(bytes.begin(), token.size(), token.begin());
  const std::string rest = servers.substr(token.size());
  VarintReader reader(rest);
  std::vector<FileServerPlace> places;
  while (!reader.at_end()) reader(places.emplace_back());
  return std::make_shared<FileClient>(token, std::move(places), silence);
}

std::vector<ListedFile> FileClient::list(int rank, const fs::path& folder) {
  VarintWriter request;
  request(kList, folder);
  return decoded<std::vector<ListedFile>>(ask(rank, request.take(), kLongestListing));
}

void FileClient::read(int rank, const fs::path& path, uint64_t size, int64_t modified,
                      uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    VarintWriter request;
    request(kReadPiece, path, size, modified, offset, out.size());
    const std::string answer = ask(rank, request.take(), 2 * kPieceBytes);
    VarintReader reader(answer);
    const std::string bytes = reader.text();
    if (bytes.empty() || bytes.size() > out.size()) {
      throw IoError({.file = path.string()}, "arrived with a different length than requested", 0);
    }
    const ByteSpan piece = as_byte_span(bytes);
    std::copy(piece.begin(), piece.end(), out.begin());
    out = out.subspan(bytes.size());
    offset += bytes.size();
  }
}

void FileClient::stop(bool stopped) {
  const std::lock_guard lock(mutex_);
  stopped_ = stopped;
  if (!stopped) return;
  for (const int fd : busy_) ::shutdown(fd, SHUT_RDWR);
}

FileClient::Server& FileClient::server(int rank) {
  const auto found = servers_.find(rank);
  if (found == servers_.end()) {
    throw IoError({}, "nobody says where the files of rank " + std::to_string(rank) + " are", 0);
  }
  return found->second;
}

FileDescriptor FileClient::connection(int rank) {
  FileServerPlace place;
  {
    const std::lock_guard lock(mutex_);
    Server& found = server(rank);
    if (!found.idle.empty()) {
      FileDescriptor socket = std::move(found.idle.back());
      found.idle.pop_back();
      return socket;
    }
    place = found.place;
  }
  return connect(place);
}

// Others may have the same address in networks of their own.
FileDescriptor FileClient::connect(const FileServerPlace& place) const {
  for (const std::string& address : place.addresses) {
    FileDescriptor socket = connect_to(address, place.port, kLongestConnect);
    if (socket.get() < 0) continue;
    if (introduce(socket.get(), token_, place.member.rank, kLongestGreeting)) return socket;
  }
  throw IoError({},
                "cannot read the files of " + place.member.name() +
                    ": it does not answer on port " + std::to_string(place.port),
                0);
}

// The bytes behind a status of kDone.
std::string FileClient::ask(int rank, const std::string& request, size_t longest) {
  FileDescriptor socket = connection(rank);
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw InterruptedError();
    busy_.push_back(socket.get());
  }
  Talk talk(socket.get(), silence_);
  std::string all;
  const bool answered = talk.say_text(with_crc(request)) && talk.hear_text(all, longest);
  Member member;
  {
    const std::lock_guard lock(mutex_);
    busy_.erase(std::find(busy_.begin(), busy_.end(), socket.get()));
    if (stopped_) throw InterruptedError();
    Server& known = server(rank);
    member = known.place.member;
    if (answered) known.idle.push_back(std::move(socket));
  }
  const std::optional<std::string> answer = answered ? without_crc(all) : std::nullopt;
  if (!answer) {
    throw IoError({},
                  member.name() + (answered ? " sent bytes whose checksum is wrong"
                                            : " no longer serves its files"),
                  0);
  }
  VarintReader reader(*answer);
  if (reader.number() == kDone) return answer->substr(1);
  const std::string message = reader.text();
  const auto reason = static_cast<int>(reader.number());
  // The text of errno is part of the message already.
  Error(IoError({}, "", reason), member.name() + ": " + message).raise();
}

}  // namespace dsckpt
