#include "inspect/diff_tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dsckpt {
namespace {

TensorDiff tensor(const std::string& name, Verdict verdict, double distance = 0) {
  TensorDiff diff{.name = name, .state = "", .verdict = verdict};
  diff.values.count = 10;
  if (distance > 0) {
    diff.values.differing = 1;
    diff.values.index = 0;
    diff.values.max_absolute = distance;
  }
  return diff;
}

std::vector<std::string> names_of(const DiffNode& node) {
  std::vector<std::string> names;
  for (const TensorDiff* each : node.tensors) names.push_back(each->name);
  return names;
}

// Sixteen layers, each with one tensor of two that differs: too many for a list.
Diff sixteen_layers() {
  Diff diff;
  for (const int layer : {0, 1, 10, 11, 12, 13, 14, 15, 2, 3, 4, 5, 6, 7, 8, 9}) {
    const std::string name = "model.layers." + std::to_string(layer);
    diff.tensors.push_back(tensor(name + ".up.weight", Verdict::values, layer + 1));
    diff.tensors.push_back(tensor(name + ".norm.weight", Verdict::equal));
  }
  diff.largest_in = "model.layers.15.up.weight";
  return diff;
}

TEST(DiffTree, CountsEverythingAndShowsWhatDiffers) {
  const Diff diff = sixteen_layers();
  const DiffNode root = diff_tree(diff, false, 100);
  EXPECT_EQ(root.count(), 32U);
  EXPECT_EQ(root.differing(), 16U);
  EXPECT_EQ(root.total.differing, 16U);
  EXPECT_EQ(static_cast<double>(root.total.max_absolute), 16);
  // A module with one child is one with it.
  ASSERT_EQ(root.children.size(), 1U);
  const DiffNode& layers = root.children.front();
  EXPECT_EQ(layers.name, "model.layers");
  ASSERT_EQ(layers.children.size(), 16U);
  for (size_t i = 0; i < 16; ++i) {
    const DiffNode& layer = layers.children[i];
    EXPECT_EQ(layer.name, std::to_string(i));  // by number, not by letter
    EXPECT_EQ(names_of(layer), std::vector{"model.layers." + std::to_string(i) + ".up.weight"});
    EXPECT_EQ(layer.left_out, 1U);
    EXPECT_EQ(layer.holds_largest, i == 15);
  }
}

TEST(DiffTree, WhatIsNotShownIsCountedAbove) {
  const Diff diff = sixteen_layers();
  const DiffNode root = diff_tree(diff, false, 14);
  const DiffNode& layers = root.children.front();
  EXPECT_EQ(layers.children.size(), 14U);  // 2 to 15
  EXPECT_EQ(layers.children.front().name, "2");
  EXPECT_EQ(layers.left_out, 4U);  // two layers of two
  EXPECT_EQ(layers.count(), 32U);
}

TEST(DiffTree, LittleIsAListTheFurthestApartFirst) {
  const Diff diff = sixteen_layers();
  const DiffNode root = diff_tree(diff, false, 3);
  ASSERT_EQ(root.children.size(), 1U);
  EXPECT_TRUE(root.children.front().children.empty());
  EXPECT_EQ(names_of(root.children.front()),
            (std::vector<std::string>{"model.layers.15.up.weight", "model.layers.14.up.weight",
                                      "model.layers.13.up.weight"}));
  EXPECT_EQ(root.children.front().left_out, 29U);
}

TEST(DiffTree, EqualTensorsAreShownOnlyIfAskedFor) {
  Diff diff;
  diff.tensors = {tensor("a.b", Verdict::equal), tensor("c", Verdict::equal)};
  const DiffNode none = diff_tree(diff, false, 100);
  EXPECT_TRUE(none.children.empty() && none.tensors.empty());
  EXPECT_EQ(none.left_out, 2U);
  const DiffNode all = diff_tree(diff, true, 100);
  EXPECT_EQ(all.tensors.size() + all.children.size(), 2U);
}

TEST(DiffTree, ValuesThatDifferComeBeforeWhatCannotBeCompared) {
  Diff diff;
  diff.tensors = {tensor("same", Verdict::equal), tensor("gone", Verdict::only_in_a),
                  tensor("near", Verdict::values, 1), tensor("far", Verdict::values, 5),
                  tensor("fine", Verdict::within, 9)};
  std::vector<std::string> names;
  for (const TensorDiff* each : furthest_apart(diff)) names.push_back(each->name);
  EXPECT_EQ(names, (std::vector<std::string>{"far", "near", "gone", "fine", "same"}));
}

// However deep names are, the tree is not.
TEST(DiffTree, DepthIsBounded) {
  std::string name = "w";
  for (int i = 0; i < 1000; ++i) name = "a." + name;
  Diff diff;
  diff.tensors = {tensor(name, Verdict::values, 1), tensor("b", Verdict::values, 1)};
  EXPECT_EQ(diff_tree(diff, false, 100).count(), 2U);
}

}  // namespace
}  // namespace dsckpt
