// ckpt-inspect print: the values of a tensor.

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "base/bytes.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/shown.h"
#include "cli/messages.h"
#include "cli/terminal.h"
#include "dsckpt/error.h"
#include "format/read_tensor.h"
#include "inspect/extents.h"
#include "inspect/values.h"
#include "job/gather.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

constexpr int64_t kEdge = 3;                 // the default of torch.set_printoptions
constexpr int64_t kMaxShown = 1000;          // likewise
constexpr int64_t kWrittenAtOnce = 4 << 20;  // elements
// The limit for JSON, which holds all values until it is written, and for shortened output.
constexpr int64_t kMaxValues = 10'000'000;

struct PrintArguments {
  std::string path;
  std::string name;
  std::string slice;
  std::string state;
  bool full = false;
  bool bytes = false;
  ContentsOptions contents;
};

nlohmann::json value_json(DType dtype, const std::byte* at) {
  std::string text = element_text(dtype, at);
  if (dtype == DType::boolean) return text == "True";
  // JSON has no NaN, infinities and complex numbers, so they are texts.
  nlohmann::json number = parse_json(text);
  return number.is_number() ? number : nlohmann::json(std::move(text));
}

nlohmann::json values_json(const InputFiles& inputs, const TensorSource& tensor) {
  if (tensor.numel() > kMaxValues) {
    throw UsageError(counted(tensor.numel(), "value") +
                     " are too many for one JSON object; "
                     "give a slice");
  }
  std::vector<std::byte> bytes(tensor.nbytes());
  read_elements(inputs, tensor, 0, tensor.numel(), bytes);
  nlohmann::json values = nlohmann::json::array();
  for (size_t at = 0; at < bytes.size(); at += size_of(tensor.dtype())) {
    values.push_back(value_json(tensor.dtype(), bytes.data() + at));
  }
  return values;
}

// Prints nothing before the records of the tensor have been checked.
void print_bytes(const InputFiles& inputs, const TensorSource& tensor) {
  if (cli::Terminal::of_stdout().tables) {
    throw UsageError("--bytes does not print to a terminal: redirect it to a file, > FILE");
  }
  Progress progress;
  check_records(inputs, tensor, progress);
  const TensorSource elements = tensor.flatten();
  std::vector<std::byte> bytes;
  for (int64_t first = 0; first < elements.numel(); first += kWrittenAtOnce) {
    const TensorSource part =
        elements.narrow(0, first, std::min(kWrittenAtOnce, elements.numel() - first));
    bytes.resize(part.nbytes());
    const std::span<std::byte> out = bytes;
    gather(plan_gather({&part, 1}), inputs, {&out, 1}, {}, progress);
    std::cout << as_text(out);
  }
}

}  // namespace

void write_named_values(const InputFiles& inputs, const std::string& label,
                        const TensorSource& tensor, bool full,
                        const std::function<void(std::string_view)>& write) {
  const int64_t edge = full || tensor.numel() <= kMaxShown ? 0 : kEdge;
  int64_t shown = 1;
  for (const int64_t size : tensor.shape()) {
    if (edge > 0) shown = std::min(shown * std::min(size, 2 * edge), kMaxValues);
  }
  if (shown == kMaxValues) throw UsageError("the shortened values are too many; give a slice");
  write(printable(label) + " " + std::string(torch_name(tensor.dtype())) + " " +
        to_text(tensor.shape()) + "\n");
  write_values(inputs, tensor, edge, write);
}

namespace {

int print(const cli::Common& common, const PrintArguments& args) {
  InputFiles inputs;
  const Contents contents = open_contents(inputs, common, args.path, args.contents);
  const NamedTensor& tensor = tensor_named(contents, args.name, args.state);
  const TensorSource part = sliced(tensor.value, args.slice);
  return in_context({.tensor = tensor.label()}, [&] {
    if (args.bytes) {
      print_bytes(inputs, part);
      return cli::kDone;
    }
    if (common.json) {
      nlohmann::json data = {{"name", tensor.name},
                             {"dtype", torch_name(part.dtype())},
                             {"shape", part.shape()},
                             {"values", values_json(inputs, part)}};
      if (!tensor.state.empty()) data["state"] = tensor.state;
      cli::print_json("print", std::move(data));
      return cli::kDone;
    }
    write_named_values(inputs, tensor.label(), part, args.full,
                       [](std::string_view text) { std::cout << text; });
    return cli::kDone;
  });
}

}  // namespace

Command add_print(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand("print", "The values of a tensor, or of a slice of it");
  const auto args = std::make_shared<PrintArguments>();
  add_contents_options(sub, "path", args->path, args->contents);
  sub.add_option("name", args->name, "Name of the tensor")->required()->type_name("NAME");
  sub.add_option("slice", args->slice, "Slice to print, in Python's notation: '[0:4, -1]'")
      ->type_name("SLICE");
  sub.add_option("--state", args->state, "Not the tensor itself but this state of the optimizer")
      ->type_name("KEY");
  sub.add_flag("--full", args->full, "All values, however many");
  sub.add_flag("--bytes", args->bytes, "The bytes of the elements, row-major");
  return {&sub, [&common, args] {
            args->contents.states = !args->state.empty();
            return print(common, *args);
          }};
}

}  // namespace dsckpt::inspect
