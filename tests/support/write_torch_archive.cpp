// write_torch_archive PLAN.json IN.safetensors FOLDER NAME
//
// Writes FOLDER/NAME with TorchArchiveWriter, for the comparison with torch.save. The plan is one
// of:
//
//   {"dict": [[KEY, VALUE], ...]}, {"list": [...]}, an integer, a string
//   {"tied": KEY}: the value that was already made under that top-level key
//   {"storage": TENSOR_NAME, "shape": [...], "offset": N, "stride": [...], "grad": BOOL}: a tensor
//
// The storage of a tensor has that tensor's data. Everything but "storage" is optional.
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "support/plan_runner.h"

namespace dsckpt::test {
namespace {

using nlohmann::json;
using pickle::Document;
using pickle::Value;

class Builder {
 public:
  Builder(const InputFiles& files, FileId id) : file_(SafetensorsFile::open(files, id)) {}

  Value build(const json& node) {
    Document& document = writer.document();
    if (node.is_number_integer()) return Document::integer(node.get<int64_t>());
    if (node.is_string()) return document.string(node.get<std::string>());
    if (node.contains("tied")) return top_.at(node["tied"]);
    if (node.contains("storage")) return tensor(node);
    if (node.contains("list")) {
      const Value list = document.list();
      for (const json& item : node["list"]) document.append(list, build(item));
      return list;
    }
    const Value dict = document.dict();
    for (const json& item : node.at("dict")) {
      const std::string key = item.at(0);
      const Value value = build(item.at(1));
      top_.insert_or_assign(key, value);
      document.set_item(dict, document.string(key), value);
    }
    return dict;
  }

  TorchArchiveWriter writer;

 private:
  Value tensor(const json& node) {
    const std::string name = node.at("storage");
    std::optional<TensorSource> data;
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (entry.name == name) data = file_.tensor(entry);
    }
    const auto [at, fresh] = storages_.try_emplace(name, 0);
    const Shape shape = node.contains("shape") ? node["shape"].get<Shape>() : data.value().shape();
    if (fresh) at->second = writer.storage(data.value());
    std::optional<Strides> strides;
    if (node.contains("stride")) strides = node["stride"].get<Strides>();
    return writer.tensor(at->second, shape, node.value("offset", int64_t{0}), strides,
                         node.value("grad", false));
  }

  SafetensorsFile file_;
  std::map<std::string, TorchArchiveWriter::StorageId> storages_;
  std::map<std::string, Value> top_;
};

}  // namespace
}  // namespace dsckpt::test

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: write_torch_archive PLAN.json IN.safetensors FOLDER NAME\n", stderr);
    return 2;
  }
  dsckpt::InputFiles files;
  dsckpt::test::Builder builder(files, files.add(argv[2]));
  std::ifstream plan_file(argv[1]);
  builder.writer.document().set_root(builder.build(nlohmann::json::parse(plan_file)));
  dsckpt::PlanBuilder plan;
  std::move(builder.writer).lay_out(plan, argv[4]);
  dsckpt::test::run_plan_to(plan.finish(), files, argv[3]);
  return 0;
}
