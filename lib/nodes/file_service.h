// FileService: the ranks of a run read files of each other's disks.
//
// Each rank listens on a port of its own. A client with the run's token may list folders and read
// regular files there, with the rights of that rank's process. Nothing can be written. One
// connection serves one reader, request by request: what is asked for and its answer are texts with
// a CRC32. So all bytes go from the rank that has them to the rank that needs them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/launch.h"
#include "base/varint.h"
#include "nodes/handshake.h"
#include "nodes/sockets.h"

namespace dsckpt {

// The attributes of a file or folder that must be equal for two ranks to see the same one.
struct FileLook {
  bool is_there = false;
  bool is_folder = false;
  uint64_t size = 0;
  uint64_t inode = 0;
  int64_t modified = 0;  // nanoseconds since the epoch

  bool operator==(const FileLook&) const = default;
  static void fields(auto& codec, auto& self) {
    codec(self.is_there, self.is_folder, self.size, self.inode, self.modified);
  }
};
// Follows links.
FileLook look_at(const std::filesystem::path& path);

// A file or folder below one that was listed.
struct ListedFile {
  std::string path = {};  // relative to it
  FileLook look = {};

  static void fields(auto& codec, auto& self) { codec(self.path, self.look); }
};
// All below `folder`; a folder comes before its content. Throws IoError.
std::vector<ListedFile> list_below(const std::filesystem::path& folder);

// The server of one rank: answers until it is destroyed.
class FileServer {
 public:
  // Throws IoError.
  FileServer(const Token& token, int rank);
  ~FileServer();
  FileServer(const FileServer&) = delete;
  FileServer& operator=(const FileServer&) = delete;

  uint16_t port() const { return port_of(listening_.get()); }

 private:
  void accept_all();
  void serve(FileDescriptor socket) const;

  const Token token_;
  const int rank_;
  const FileDescriptor listening_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> readers_;  // the accepting thread's
  std::thread accepting_;
};

// Where a rank's server is.
struct FileServerPlace {
  Member member = {};
  std::vector<std::string> addresses = {};  // own_addresses()
  uint16_t port = 0;

  static void fields(auto& codec, auto& self) {
    codec(self.member.rank, self.member.host, self.addresses, self.port);
  }
};

// Reads files of other ranks. Any thread, several at a time: each has a connection of its own then.
class FileClient {
 public:
  // `silence`: a server that does not answer for so long is lost.
  FileClient(const Token& token, std::vector<FileServerPlace> places,
             std::chrono::milliseconds silence);

  // `servers`: the token, and the place of each.
  static std::shared_ptr<FileClient> of(const std::string& servers,
                                        std::chrono::milliseconds silence);

  // Throw IoError that names the rank if it is lost, and for errors there.
  std::vector<ListedFile> list(int rank, const std::filesystem::path& folder);
  // Fills `out`, of a file of that size that was last written then: it is another one otherwise.
  void read(int rank, const std::filesystem::path& path, uint64_t size, int64_t modified,
            uint64_t offset, std::span<std::byte> out);

  // Makes running and later requests fail, until it is called with false.
  void stop(bool stopped);

 private:
  struct Server {
    FileServerPlace place;
    std::vector<FileDescriptor> idle;  // connections that nobody uses
  };
  std::string ask(int rank, const std::string& request, size_t longest);
  FileDescriptor connection(int rank);
  FileDescriptor connect(const FileServerPlace& place) const;
  Server& server(int rank);

  const Token token_;
  const std::chrono::milliseconds silence_;
  std::mutex mutex_;  // guards what follows
  std::map<int, Server> servers_;
  std::vector<int> busy_;  // descriptors that are being waited for
  bool stopped_ = false;
};

}  // namespace dsckpt
