// NodeFiles: input folders on local disks of every node, seen from rank 0.
//
// DeepSpeed writes such checkpoints with checkpoint.use_node_local_storage: a folder of one name on
// each node, with the files of that node's ranks. Rank 0 sees all of them: its own files, and
// stand-ins (io/far_files.h) for those of other nodes. A read of a stand-in asks the rank that has
// the file.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dsckpt/run.h"
#include "exec/meeting.h"
#include "io/far_files.h"
#include "nodes/file_service.h"

namespace dsckpt {

// The files of one rank.
class RankReader : public FarReader {
 public:
  RankReader(std::shared_ptr<FileClient> client, int rank)
      : client_(std::move(client)), rank_(rank) {}
  void read_at(const std::filesystem::path& path, uint64_t size, int64_t modified, uint64_t offset,
               std::span<std::byte> out) override;

 private:
  std::shared_ptr<FileClient> client_;
  const int rank_;
};

// For rank 0. The stand-ins exist as long as it lives.
class NodeFiles {
 public:
  // Asks all ranks for their files in `folders`. Does nothing more if these are the files that rank
  // 0 sees. Throws as Meeting::ask().
  NodeFiles(Meeting& ranks, const std::vector<std::filesystem::path>& folders, Progress& progress);
  ~NodeFiles();
  NodeFiles(const NodeFiles&) = delete;
  NodeFiles& operator=(const NodeFiles&) = delete;

  // Folders of stand-ins, one for each node's own folder, by rank.
  const std::vector<std::filesystem::path>& roots() const { return roots_; }

 private:
  void open_service();
  void stand_in(int rank, const std::filesystem::path& folder,
                const std::vector<ListedFile>& files);

  Meeting& ranks_;
  Progress& progress_;
  std::unique_ptr<FileServer> server_;
  std::filesystem::path folder_;  // of all stand-ins
  std::vector<std::filesystem::path> roots_;
  std::vector<std::filesystem::path> mounted_;
};

// The other ranks' side: the answers to Word::look and Word::serve.
std::string looks_of(const std::string& folders);
Token token_in(const std::string& text);
std::string place_text(const FileServer& server, int rank);

}  // namespace dsckpt
