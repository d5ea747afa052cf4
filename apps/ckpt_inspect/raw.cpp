// ckpt-inspect raw: a pickle as data.

#include <CLI/App.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "format/torch_form.h"
#include "format/zip.h"
#include "inspect/global_classes.h"
#include "inspect/pickle_text.h"
#include "io/input_file.h"
#include "pickle/pickle.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

struct RawArguments {
  std::string path;
  std::string record;
  std::string key;
  std::optional<uint64_t> offset;
  PickleTextOptions text;
};

// A parsed pickle, and the archive that it belongs to, if any.
struct OpenedRecord {
  std::optional<TorchArchive> archive;
  pickle::Document own;
  std::string record;

  const pickle::Document& document() const { return archive ? archive->document() : own; }
};

// Returns the record `name` of a zip. The top folder may be left out.
const ZipEntry& record_of(const ZipReader& zip, const std::string& name) {
  for (const ZipEntry& entry : zip.entries()) {
    if (entry.name == name || entry.name.ends_with("/" + name)) return entry;
  }
  throw UsageError("there is no record '" + name + "' in the zip");
}

OpenedRecord open_record(const InputFile& file, const ZipReader& zip, const std::string& record,
                         uint64_t offset) {
  OpenedRecord opened;
  const ZipEntry& entry = record_of(zip, record);
  const std::vector<std::byte> bytes = zip.read(entry);
  const size_t begin = std::min<uint64_t>(offset, bytes.size());
  size_t end = 0;
  opened.record = std::string(entry.name);
  opened.own = in_context({.file = file.display(), .member = opened.record}, [&] {
    return pickle::Document::parse(ByteSpan(bytes).subspan(begin), begin, &end);
  });
  return opened;
}

// torch.distributed.checkpoint writes a zip for each value, one after the other.
OpenedRecord open_value(const InputFile& file, FileId id, const RawArguments& args) {
  const std::vector<Extent> zips = zips_in_a_row(file, id);
  const auto zip = std::find_if(zips.begin(), zips.end(), [&](const Extent& each) {
    return each.offset == args.offset.value_or(0);
  });
  if (zip == zips.end()) throw UsageError("no value begins at --offset");
  return open_record(file, ZipReader::open(file, *zip),
                     args.record.empty() ? "data.pkl" : args.record, 0);
}

OpenedRecord open(const InputFiles& inputs, FileId id, const RawArguments& args) {
  const InputFile& file = inputs[id];
  const bool is_zip = ZipReader::probe(file);
  if (is_zip && file.display().ends_with(".distcp")) return open_value(file, id, args);
  if (!args.record.empty()) {
    if (!is_zip) throw UsageError("--record is for zips");
    return open_record(file, ZipReader::open(file, id), args.record, args.offset.value_or(0));
  }
  OpenedRecord opened;
  if (!args.offset && (is_zip || torch_form(file) == TorchForm::pickles)) {
    opened.archive = TorchArchive::open(inputs, id);
    if (is_zip) {
      opened.record = opened.archive->prefix().empty()
                          ? "data.pkl"
                          : std::string(opened.archive->prefix()) + "/data.pkl";
    }
    return opened;
  }
  const uint64_t begin = args.offset.value_or(0);
  if (begin > file.size()) throw UsageError("--offset is beyond the end of the file");
  const std::vector<std::byte> bytes =
      file.read(begin, std::min(file.size() - begin, pickle::Limits().max_bytes));
  size_t end = 0;
  opened.own = in_context({.file = file.display()},
                          [&] { return pickle::Document::parse(bytes, begin, &end); });
  return opened;
}

// Returns the class of each name in Document::globals(). The pickle shows where the module ends.
std::vector<std::pair<std::string, GlobalClass>> classes_of(const pickle::Document& document) {
  std::vector<std::pair<std::string, GlobalClass>> classes;
  for (const std::string& global : document.globals()) {
    const size_t dot = global.rfind('.');
    classes.emplace_back(global, classify_name(std::string_view(global).substr(0, dot),
                                               std::string_view(global).substr(dot + 1)));
  }
  return classes;
}

void print_json(const OpenedRecord& opened, const pickle::Value& value, const std::string& file,
                const RawArguments& args) {
  const TorchArchive* archive = opened.archive ? &*opened.archive : nullptr;
  std::cout << "{\"schema\":" << kJsonSchema
            << ",\"type\":\"raw\",\"data\":{\"file\":" << dump(file);
  if (!opened.record.empty()) std::cout << ",\"record\":" << dump(opened.record);
  std::cout << ",\"value\":";
  write_pickle_json(std::cout, value, archive, args.text);
  nlohmann::json globals = nlohmann::json::array();
  for (const auto& [global, danger] : classes_of(opened.document())) {
    globals.push_back({{"global", global}, {"class", to_string(danger)}});
  }
  std::cout << ",\"globals\":" << dump(globals) << ",\"notes\":[]}}\n";
}

// Refuses a folder, and suggests one of its files.
void refuse_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return;
  std::optional<fs::path> first;
  for (fs::recursive_directory_iterator it(path, failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->path().extension() == ".pt" && (!first || it->path() < *first)) first = it->path();
  }
  throw UsageError(path + ": is a folder; raw shows one file")
      .with_hint(first ? "`ckpt-inspect raw " + shell_word(first->string()) + "`"
                       : "`ckpt-inspect list " + shell_word(path) + "` shows its tensors");
}

int raw(const cli::Common& common, const RawArguments& args) {
  refuse_folder(args.path);
  InputFiles inputs;
  const FileId id = inputs.add(args.path);
  const OpenedRecord opened = open(inputs, id, args);
  const pickle::Value value = value_at(opened.document().root(), args.key);
  if (common.json) {
    print_json(opened, value, inputs[id].display(), args);
    return cli::kDone;
  }
  write_pickle_text(std::cout, value, opened.archive ? &*opened.archive : nullptr, args.text);
  std::cout << "\n";
  const auto classes = classes_of(opened.document());
  if (!classes.empty()) std::cout << "\nnames:\n";
  for (const auto& [global, danger] : classes) {
    std::cout << "  " << printable(global) << "\t" << to_string(danger) << "\n";
  }
  return cli::kDone;
}

}  // namespace

Command add_raw(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand("raw", "A pickle as data, with every class it names");
  const auto args = std::make_shared<RawArguments>();
  cli::input_path(
      sub.add_option("file", args->path, "A file of torch.save, a zip, or a plain pickle"))
      ->required();
  sub.add_option("--record", args->record, "The pickle in this record of a zip (default: data.pkl)")
      ->type_name("RECORD");
  sub.add_option("--offset", args->offset,
                 "The pickle that starts at this byte of the file or record; in a .distcp file,\n"
                 "the value that starts there (default: the first)")
      ->type_name("N");
  sub.add_option("--key", args->key,
                 "Only the value there: keys and indices with dots between them")
      ->type_name("PATH");
  cli::in_range(sub.add_option("--depth", args->text.depth, "Levels of containers to show"), 1,
                1000)
      ->type_name("N");
  sub.add_flag("--full", args->text.full, "Long texts in full");
  return {&sub, [&common, args] { return raw(common, *args); }};
}

}  // namespace dsckpt::inspect
