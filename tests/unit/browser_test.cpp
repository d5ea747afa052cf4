#include "inspect/browser.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace dsckpt {
namespace {

using Order = Browser::Order;

// float32: 4 bytes an element.
NamedTensor browsed(std::string name, int64_t elements, std::string state = "",
                    ParamKind kind = ParamKind::trainable) {
  return {std::move(name), std::move(state), kind, TensorSource::zeros(DType::float32, {elements}),
          ""};
}

std::string browsed_kind(const NamedTensor& tensor) {
  if (!tensor.state.empty()) return tensor.state;
  return tensor.kind == ParamKind::buffer ? "buffers" : "fp32 masters";
}

// 13 layers of a weight with two states; the last has a buffer. Some at the top, one of them tied.
std::vector<NamedTensor> model() {
  std::vector<NamedTensor> tensors{browsed("embed.weight", 1000)};
  for (int layer = 0; layer < 13; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".weight";
    tensors.push_back(browsed(name, 10 + layer));
    tensors.push_back(browsed(name, 10 + layer, "exp_avg"));
    tensors.push_back(browsed(name, 10 + layer, "exp_avg_sq"));
  }
  tensors.push_back(browsed("layers.12.positions", 7, "", ParamKind::buffer));
  tensors.push_back(browsed("head.weight", 1000));
  tensors.back().alias_of = "embed.weight";
  return tensors;
}

std::vector<std::string> names_of(const Browser& browser) {
  std::vector<std::string> names;
  for (const Browser::Line& line : browser.lines()) names.push_back(line.node->name);
  return names;
}

std::string at_cursor(const Browser& browser) {
  return browser.current() == nullptr ? "" : browser.current()->node->name;
}

TEST(Browser, ShowsTheTopSortedByBytes) {
  const std::vector<NamedTensor> tensors = model();
  const Browser browser(tensors, browsed_kind);
  EXPECT_EQ(browser.path(), "");
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"embed", "layers", "head"}));
  EXPECT_EQ(at_cursor(browser), "embed");
  // 10 + ... + 22 is 208.
  EXPECT_EQ(browser.lines()[1].bytes, 4U * (3 * 208 + 7));
  EXPECT_EQ(browser.lines()[1].elements, 208 + 7);
  EXPECT_EQ(browser.lines()[1].tensors, 14U);
  EXPECT_EQ(browser.lines()[2].bytes, 0U);
  EXPECT_EQ(browser.lines()[2].tensors, 0U);
  EXPECT_EQ(browser.module().bytes, 4U * (1000 + 3 * 208 + 7));
  EXPECT_EQ(browser.module().elements, 1000 + 208 + 7);
}

TEST(Browser, KnowsBytesOfEachKindInTheirOrder) {
  const std::vector<NamedTensor> tensors = model();
  const Browser browser(tensors, browsed_kind);
  EXPECT_EQ(browser.kinds(),
            (std::vector<std::string>{"fp32 masters", "exp_avg", "exp_avg_sq", "buffers"}));
  const std::vector<uint64_t> layers{4 * 208, 4 * 208, 4 * 208, 28};
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    EXPECT_EQ(browser.bytes_of(1, kind), layers[kind]);
    EXPECT_EQ(browser.bytes_of(0, kind), kind == 0 ? 4000U : 0U);
    EXPECT_EQ(browser.module_bytes_of(kind), layers[kind] + (kind == 0 ? 4000U : 0U));
  }
}

uint64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// A table of all lines and all kinds would have 3.2 GB.
TEST(Browser, KeepsOnlyTheKindsThatALineHas) {
  constexpr size_t kMany = 20'000;
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < kMany; ++i) {
    tensors.push_back(browsed("w" + std::to_string(i), 1, "state" + std::to_string(i)));
  }
  const uint64_t before = peak_memory();
  Browser browser(tensors, browsed_kind);
  browser.sort(Order::contents);
  ASSERT_EQ(browser.lines().size(), kMany);
  ASSERT_EQ(browser.kinds().size(), kMany);
  for (size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(browser.bytes_of(i, i), 4U);
    ASSERT_EQ(browser.bytes_of(i, (i + 1) % kMany), 0U);
    ASSERT_EQ(browser.module_bytes_of(i), 4U);
  }
  EXPECT_LT(peak_memory() - before, uint64_t{1} << 30);
}

TEST(Browser, GoesInAndOut) {
  const std::vector<NamedTensor> tensors = model();
  Browser browser(tensors, browsed_kind);
  EXPECT_FALSE(browser.leave());
  browser.move(1);
  ASSERT_TRUE(browser.enter());
  EXPECT_EQ(browser.path(), "layers");
  EXPECT_EQ(browser.lines().size(), 13U);
  EXPECT_EQ(at_cursor(browser), "12");  // the largest
  browser.move(3);
  EXPECT_EQ(at_cursor(browser), "9");
  ASSERT_TRUE(browser.enter());
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"weight"}));
  ASSERT_TRUE(browser.enter());
  EXPECT_EQ(browser.path(), "layers.9.weight");
  // The tensor itself, and its states.
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"weight", "exp_avg", "exp_avg_sq"}));
  EXPECT_TRUE(browser.lines()[0].itself);
  EXPECT_EQ(browser.lines()[0].bytes, 4U * 19);
  EXPECT_EQ(browser.lines()[0].tensor()->label(), "layers.9.weight");
  EXPECT_EQ(browser.lines()[2].tensor()->label(), "layers.9.weight exp_avg_sq");
  EXPECT_FALSE(browser.enter());
  ASSERT_TRUE(browser.leave());
  ASSERT_TRUE(browser.leave());
  EXPECT_EQ(at_cursor(browser), "9");  // where it was
  ASSERT_TRUE(browser.leave());
  EXPECT_EQ(at_cursor(browser), "layers");
}

TEST(Browser, TheCursorStaysAmongTheLines) {
  const std::vector<NamedTensor> tensors = model();
  Browser browser(tensors, browsed_kind);
  browser.move(-1);
  EXPECT_EQ(browser.cursor(), 0U);
  browser.move(PTRDIFF_MAX);
  EXPECT_EQ(browser.cursor(), 2U);
  browser.move(PTRDIFF_MAX);
  EXPECT_EQ(browser.cursor(), 2U);
  browser.move(PTRDIFF_MIN);
  EXPECT_EQ(browser.cursor(), 0U);
}

TEST(Browser, SortsAndStaysWithItsLine) {
  const std::vector<NamedTensor> tensors = model();
  Browser browser(tensors, browsed_kind);
  browser.move(1);
  browser.enter();
  EXPECT_EQ(at_cursor(browser), "12");
  browser.sort(Order::name);
  EXPECT_EQ(at_cursor(browser), "12");
  EXPECT_EQ(browser.cursor(), 12U);
  EXPECT_EQ(names_of(browser)[2], "2");  // before 10
  browser.leave();
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"embed", "head", "layers"}));
  browser.sort(Order::contents);
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"embed", "layers", "head"}));
  EXPECT_EQ(at_cursor(browser), "layers");
  browser.sort(Order::elements);
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"embed", "layers", "head"}));
}

TEST(Browser, CountsOneKind) {
  const std::vector<NamedTensor> tensors = model();
  Browser browser(tensors, browsed_kind);
  browser.count_next_kind();
  EXPECT_EQ(browser.counted(), 0U);
  EXPECT_EQ(browser.lines()[0].bytes, 4000U);
  browser.count_next_kind();  // exp_avg
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"layers"}));
  EXPECT_EQ(browser.lines()[0].bytes, 4U * 208);
  EXPECT_EQ(browser.module().bytes, 4U * 208);
  browser.enter();
  browser.enter();
  EXPECT_EQ(browser.path(), "layers.12");
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"weight"}));
  browser.count_next_kind();
  browser.count_next_kind();  // buffers
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"positions"}));
  browser.count_next_kind();
  EXPECT_FALSE(browser.counted());
  EXPECT_EQ(names_of(browser), (std::vector<std::string>{"weight", "positions"}));
}

TEST(Browser, FindsTensorsInTheirOrder) {
  const std::vector<NamedTensor> tensors = model();
  Browser browser(tensors, browsed_kind);
  const Patterns weights({R"(\.1\d\.weight$)"}, "/");
  std::vector<std::string> found;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(browser.find(weights, true));
    found.push_back(browser.current()->tensor()->label());
  }
  EXPECT_EQ(found, (std::vector<std::string>{"layers.10.weight", "layers.11.weight",
                                             "layers.12.weight", "layers.10.weight"}));
  EXPECT_EQ(browser.path(), "layers.10.weight");
  EXPECT_TRUE(browser.current()->itself);
  ASSERT_TRUE(browser.find(weights, false));
  EXPECT_EQ(browser.current()->tensor()->label(), "layers.12.weight");
  ASSERT_TRUE(browser.find(Patterns({"3.weight.exp_avg_sq"}, "/"), true));
  EXPECT_EQ(browser.current()->tensor()->label(), "layers.3.weight exp_avg_sq");
  EXPECT_EQ(browser.path(), "layers.3.weight");
  EXPECT_FALSE(browser.find(Patterns({"nothing"}, "/"), true));
  EXPECT_EQ(browser.current()->tensor()->label(), "layers.3.weight exp_avg_sq");
  // A single match is found again; from a module, its first tensor too.
  ASSERT_TRUE(browser.find(Patterns({"exp_avg_sq"}, "/"), false));
  EXPECT_EQ(browser.current()->tensor()->label(), "layers.2.weight exp_avg_sq");
  while (browser.leave()) {
  }
  browser.move(-5);
  ASSERT_TRUE(browser.find(Patterns({"embed"}, "/"), true));
  EXPECT_EQ(browser.path(), "embed");
  ASSERT_TRUE(browser.find(Patterns({"embed"}, "/"), true));
  EXPECT_EQ(browser.path(), "embed");
}

TEST(Browser, MarksTwo) {
  const std::vector<NamedTensor> tensors = model();
  Browser browser(tensors, browsed_kind);
  browser.mark();  // a module
  EXPECT_TRUE(browser.marks().empty());
  const Patterns any({"weight$"}, "/");
  browser.find(any, true);
  for (int i = 0; i < 3; ++i) {
    browser.mark();
    browser.find(any, true);
  }
  ASSERT_EQ(browser.marks().size(), 2U);
  EXPECT_EQ(browser.marks()[0]->name, "layers.0.weight");
  EXPECT_EQ(browser.marks()[1]->name, "layers.1.weight");
  EXPECT_TRUE(browser.marked(*browser.marks()[1]));
  EXPECT_FALSE(browser.marked(tensors[0]));
  browser.find(any, false);
  browser.mark();
  ASSERT_EQ(browser.marks().size(), 1U);
  EXPECT_EQ(browser.marks()[0]->name, "layers.0.weight");
}

TEST(Browser, TakesOddNames) {
  // The same parts, empty parts, a tensor that others are below, more parts than a tree has levels.
  std::string deep = "x";
  for (int i = 0; i < 150; ++i) deep += ".x";
  std::vector<NamedTensor> tensors{browsed("a", 1),  browsed("a.b", 2), browsed("", 3),
                                   browsed("..", 4), browsed(deep, 5),  browsed("a.b.c", 6)};
  Browser browser(tensors, browsed_kind);
  for (const NamedTensor& tensor : tensors) {
    const Patterns whole({"^" + std::string(tensor.name == ".." ? R"(\.\.)" : tensor.name) + "$"},
                         "/");
    ASSERT_TRUE(browser.find(whole, true)) << tensor.name;
    EXPECT_EQ(browser.current()->tensor(), &tensor);
  }
  const std::vector<NamedTensor> none;
  Browser empty(none, browsed_kind);
  EXPECT_EQ(empty.current(), nullptr);
  empty.move(1);
  empty.mark();
  empty.sort(Order::name);
  empty.count_next_kind();
  EXPECT_FALSE(empty.enter());
  EXPECT_FALSE(empty.find(Patterns({"a"}, "/"), true));
}

// A tree of modules, made the long way: each part of each name is a node.
struct Plain {
  std::string name;
  const NamedTensor* tensor = nullptr;
  std::vector<Plain> children = {};
};

Plain plain_tree(const std::vector<NamedTensor>& tensors) {
  Plain root;
  for (const NamedTensor& tensor : tensors) {
    Plain* node = &root;
    std::string rest = std::string(tensor.name) + (tensor.state.empty() ? "" : "." + tensor.state);
    for (size_t depth = 1;; ++depth) {
      const size_t dot = depth == 100 ? std::string::npos : rest.find('.');
      const std::string part = rest.substr(0, dot);
      auto child = std::find_if(node->children.begin(), node->children.end(),
                                [&](const Plain& each) { return each.name == part; });
      if (child == node->children.end()) {
        node->children.push_back({part});
        child = node->children.end() - 1;
      }
      node = &*child;
      if (dot == std::string::npos) break;
      rest.erase(0, dot + 1);
    }
    node->tensor = &tensor;
  }
  return root;
}

void expect_same(TreeNode& node, const Plain& plain) {
  EXPECT_EQ(node.name, plain.name);
  EXPECT_EQ(node.tensor, plain.tensor);
  EXPECT_EQ(node.has_children(), !plain.children.empty());
  expand(node);
  ASSERT_EQ(node.children.size(), plain.children.size());
  uint64_t tensors = node.tensor != nullptr && node.tensor->alias_of.empty() ? 1 : 0;
  for (size_t i = 0; i < plain.children.size(); ++i) {
    expect_same(node.children[i], plain.children[i]);
    tensors += node.children[i].tensors;
  }
  EXPECT_EQ(node.tensors, tensors);
}

// A part of a module with a single child is joined with it, without numbers that could be folded.
std::string folded_names(const Plain& plain, const std::string& front) {
  std::string text;
  for (const Plain& child : plain.children) {
    const Plain* at = &child;
    std::string name = child.name;
    while (at->tensor == nullptr && at->children.size() == 1) {
      at = &at->children.front();
      name += "." + at->name;
    }
    text += front + name + "\n" + folded_names(*at, front + " ");
  }
  return text;
}

std::string folded_names(const TreeNode& node, const std::string& front) {
  EXPECT_EQ(node.only, nullptr);
  std::string text;
  for (const TreeNode& child : node.children) {
    text += front + child.name + "\n" + folded_names(child, front + " ");
  }
  return text;
}

TEST(Tree, IsThatOfEachPartOfEachName) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<NamedTensor> tensors;
    const size_t count = 1 + random() % 25;
    for (size_t i = 0; i < count; ++i) {
      std::string name;
      // Some deeper than modules may lie, with empty parts, and names that begin others.
      size_t parts = 1 + random() % 6;
      if (random() % 20 == 0) parts = 95 + random() % 12;
      for (size_t part = 0; part < parts; ++part) {
        name += (part > 0 ? "." : "") + std::string(random() % 9 == 0 ? 0 : 1, "abc"[random() % 3]);
      }
      tensors.push_back(browsed(name, 1, random() % 4 == 0 ? "a" : ""));
      if (random() % 9 == 0) tensors.back().alias_of = "another";
    }
    const Plain plain = plain_tree(tensors);
    TreeNode tree = tree_of(tensors, false);
    expect_same(tree, plain);
    EXPECT_EQ(folded_names(tree_of(tensors, true), ""), folded_names(plain, ""));
  }
}

TEST(Browser, GoesThroughNamesThatShareNothing) {
  const std::vector<NamedTensor> tensors{browsed("a.b.c.w", 3), browsed("x.y.z", 1)};
  Browser browser(tensors, browsed_kind);
  for (const char* name : {"a", "b", "c", "w"}) {
    EXPECT_EQ(at_cursor(browser), name);
    EXPECT_EQ(browser.current()->bytes, 12u);
    EXPECT_EQ(browser.enter(), std::string(name) != "w");
  }
  EXPECT_EQ(browser.path(), "a.b.c");
  ASSERT_TRUE(browser.find(Patterns({R"(\.y\.z$)"}, "/"), true));
  EXPECT_EQ(browser.path(), "x.y");
  EXPECT_EQ(browser.current()->tensor(), &tensors[1]);
}

TEST(NaturalLess, TakesDigitsForNumbers) {
  const std::vector<std::string> sorted{"",    "0",  "1",   "2",  "10", "a",
                                        "a01", "a1", "a1b", "a2", "b"};
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = 0; j < sorted.size(); ++j) {
      EXPECT_EQ(natural_less(sorted[i], sorted[j]), i < j) << sorted[i] << " " << sorted[j];
    }
  }
}

}  // namespace
}  // namespace dsckpt
