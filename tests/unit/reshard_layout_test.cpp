// Which elements a rank has. All numbers are worked out by hand from stage_1_and_2.py and
// stage3.py.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "format/read_tensor.h"
#include "reshard/layout.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using Numbers = std::vector<float>;
using Names = std::vector<std::string>;
using Slice = ReshardLayout::Slice;

// A model whose parameters hold 1, 2, 3, ... in their order; states are ten times that.
class Model {
 public:
  Param& add(const std::string& name, Shape shape) {
    const TensorSource weight = stored(shape, 1);
    next_ += static_cast<int>(weight.numel());
    params_.push_back({.name = name, .weight = weight});
    return params_.back();
  }

  void add_state(Param& param, const std::string& key) {
    next_ -= static_cast<int>(param.weight.numel());
    param.states.push_back({key, stored(param.weight.shape(), 10)});
    next_ += static_cast<int>(param.weight.numel());
  }

  LayoutSource source() const {
    LayoutSource source;
    source.params = params_;
    source.folder = "folder";
    source.file = "folder/model.pt";
    return source;
  }

  Numbers read(const TensorSource& tensor) const {
    Numbers numbers(static_cast<size_t>(tensor.numel()));
    std::vector<std::byte> bytes(tensor.nbytes());
    read_elements(inputs_, tensor, 0, tensor.numel(), bytes);
    if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }

 private:
  TensorSource stored(const Shape& shape, int factor) {
    Numbers numbers;
    for (int64_t i = 0; i < numel(shape); ++i) {
      numbers.push_back(static_cast<float>(factor * (next_ + static_cast<int>(i))));
    }
    const std::string_view bytes(reinterpret_cast<const char*>(numbers.data()),
                                 numbers.size() * sizeof(float));
    const FileId id = inputs_.add(folder_.write(std::to_string(files_++), bytes));
    return TensorSource::stored({.file = id, .offset = 0, .size = bytes.size()}, DType::float32,
                                shape);
  }

  test::TempFolder folder_;
  InputFiles inputs_;
  std::vector<Param> params_;
  int next_ = 1;
  int files_ = 0;
};

TensorSource weight_of(const Param& param) {
  return param.weight;
}

ReshardTarget target_of(int stage, EngineWrapper wrapper, uint32_t dp, const Names& names) {
  ReshardTarget target{.dp = dp, .stage = stage, .wrapper = wrapper};
  target.groups = {{.params = names}};
  return target;
}

// a, b, c of 5, 7 and 3 elements: 1 to 5, 6 to 12, 13 to 15.
struct Three {
  Three() {
    model.add("a", {5});
    model.add("b", {7});
    model.add("c", {3});
  }
  ReshardLayout layout(const ReshardTarget& target) const { return {model.source(), target}; }
  Model model;
};

// The slices of a rank as text: "a[0:5] at 0".
Names slices_of(const ReshardLayout& layout, uint32_t rank) {
  Names texts;
  for (const Slice& slice : layout.slices(layout.groups().front(), rank)) {
    texts.push_back(slice.param->name + "[" + std::to_string(slice.begin) + ":" +
                    std::to_string(slice.begin + slice.numel) + "] at " +
                    std::to_string(slice.start));
  }
  return texts;
}

TEST(ReshardLayout, FlatVectorIsCutIntoEqualPartitions) {
  const Three three;
  const ReshardTarget target = target_of(2, EngineWrapper::zero12, 2, {"a", "b", "c"});
  const ReshardLayout layout = three.layout(target);
  const ReshardLayout::Group& group = layout.groups().front();
  // 15 elements, a multiple of 2 * 2: 16.
  EXPECT_EQ(group.flat.partition, 8u);
  EXPECT_EQ(group.flat.used, 15u);
  EXPECT_EQ(slices_of(layout, 0), (Names{"a[0:5] at 0", "b[0:3] at 5"}));
  EXPECT_EQ(slices_of(layout, 1), (Names{"b[3:7] at 0", "c[0:3] at 4"}));
  EXPECT_EQ(layout.real_part(group, 0), 8u);
  EXPECT_EQ(layout.real_part(group, 1), 7u);
  const auto part = [&](uint32_t rank, bool padded) {
    return three.model.read(layout.partition(group, rank, padded, weight_of));
  };
  EXPECT_EQ(part(0, false), (Numbers{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(part(1, false), (Numbers{9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(part(1, true), (Numbers{9, 10, 11, 12, 13, 14, 15, 0}));
}

TEST(ReshardLayout, RanksBehindTheLastElementHavePaddingOnly) {
  const Three three;
  const ReshardTarget target = target_of(1, EngineWrapper::zero12, 4, {"c"});
  const ReshardLayout layout = three.layout(target);
  const ReshardLayout::Group& group = layout.groups().front();
  // 3 elements, a multiple of 2 * 4: 8.
  EXPECT_EQ(group.flat.partition, 2u);
  const std::vector<uint64_t> real{2, 1, 0, 0};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(layout.real_part(group, rank), real[rank]) << rank;
  }
  EXPECT_EQ(slices_of(layout, 3), Names{});
  EXPECT_EQ(three.model.read(layout.partition(group, 3, false, weight_of)), Numbers{});
  EXPECT_EQ(three.model.read(layout.partition(group, 3, true, weight_of)), (Numbers{0, 0}));
  EXPECT_EQ(three.model.read(layout.partition(group, 1, true, weight_of)), (Numbers{15, 0}));
}

// nccl_start_alignment_factor: 16 bytes, 8 elements of 16 bits.
TEST(ReshardLayout, ParameterAlignmentIsOfTheTypeTheParametersGet) {
  const Three three;
  ReshardTarget target = target_of(2, EngineWrapper::zero12, 2, {"a", "b", "c"});
  target.parameter_alignment = true;
  target.saved_param_dtype = DType::bfloat16;
  {
    const ReshardLayout layout = three.layout(target);
    const ReshardLayout::Group& group = layout.groups().front();
    EXPECT_EQ(group.flat.paddings, (std::vector<uint64_t>{3, 1, 0}));
    EXPECT_EQ(group.flat.used, 19u);
    EXPECT_EQ(group.flat.partition, 10u);
    EXPECT_EQ(slices_of(layout, 0), (Names{"a[0:5] at 0", "b[0:2] at 8"}));
    EXPECT_EQ(slices_of(layout, 1), (Names{"b[2:7] at 0", "c[0:3] at 6"}));
    EXPECT_EQ(three.model.read(layout.partition(group, 0, false, weight_of)),
              (Numbers{1, 2, 3, 4, 5, 0, 0, 0, 6, 7}));
    EXPECT_EQ(three.model.read(layout.partition(group, 1, true, weight_of)),
              (Numbers{8, 9, 10, 11, 12, 0, 13, 14, 15, 0}));
  }
  target.groups = {{.params = {"c", "a"}}};
  target.param_dtype = DType::float32;  // 4 elements
  EXPECT_EQ(three.layout(target).groups().front().flat.paddings, (std::vector<uint64_t>{1, 0}));
  target.param_dtype = DType::float16;
  EXPECT_EQ(three.layout(target).groups().front().flat.paddings, (std::vector<uint64_t>{5, 0}));
}

// _round_robin_reorder: every rank in turn gets a parameter.
TEST(ReshardLayout, RoundRobinOrdersByTheNewRanks) {
  const Three three;
  ReshardTarget target = target_of(2, EngineWrapper::zero12, 2, {"a", "b", "c"});
  target.round_robin = true;
  const ReshardLayout layout = three.layout(target);
  EXPECT_EQ(slices_of(layout, 0), (Names{"a[0:5] at 0", "c[0:3] at 5"}));
  EXPECT_EQ(slices_of(layout, 1), (Names{"b[0:7] at 0"}));
}

TEST(ReshardLayout, SubGroupsEndWhereARankHasEnough) {
  const Three three;
  ReshardTarget target = target_of(3, EngineWrapper::zero3, 2, {"a", "b", "c"});
  // A rank has 3, 4 and 2 of 5, 7 and 3 elements.
  const auto ends = [&](uint64_t size) {
    target.sub_group_size = size;
    const ReshardLayout layout = three.layout(target);
    std::vector<size_t> all;
    for (const ReshardLayout::Run& run : layout.runs()) all.push_back(run.end);
    return all;
  };
  using Ends = std::vector<size_t>;
  EXPECT_EQ(ends(1), (Ends{1, 2, 3}));
  EXPECT_EQ(ends(3), (Ends{1, 2, 3}));
  EXPECT_EQ(ends(4), (Ends{2, 3}));
  EXPECT_EQ(ends(7), (Ends{2, 3}));
  EXPECT_EQ(ends(8), (Ends{3}));
  EXPECT_EQ(ends(1'000'000'000), (Ends{3}));
}

TEST(ReshardLayout, ASubGroupIsARanksPiecesFilledUpWithZeros) {
  const Three three;
  ReshardTarget target = target_of(3, EngineWrapper::zero3, 2, {"a", "b", "c"});
  target.sub_group_size = 7;
  const ReshardLayout layout = three.layout(target);
  const auto tensor = [&](size_t run, uint32_t rank) {
    return three.model.read(layout.of_run(layout.runs()[run], rank, weight_of));
  };
  EXPECT_EQ(tensor(0, 0), (Numbers{1, 2, 3, 6, 7, 8, 9}));
  EXPECT_EQ(tensor(0, 1), (Numbers{4, 5, 0, 10, 11, 12, 0}));
  EXPECT_EQ(tensor(1, 0), (Numbers{13, 14}));
  EXPECT_EQ(tensor(1, 1), (Numbers{15, 0}));
}

// partition_parameters.py: a rank behind the last element has zeros.
TEST(ReshardLayout, APieceIsNeverEmpty) {
  const Three three;
  const TensorSource c = three.model.source().params[2].weight;
  const std::vector<Numbers> pieces{{13}, {14}, {15}, {0}, {0}};
  for (uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(three.model.read(ReshardLayout::piece(c, rank, 5)), pieces[rank]) << rank;
  }
}

TEST(ReshardLayout, WithoutZeroATensorIsAParameterOrAGroup) {
  const Three three;
  for (const EngineWrapper wrapper : {EngineWrapper::plain, EngineWrapper::fp16_unfused}) {
    const ReshardTarget target = target_of(0, wrapper, 2, {"b", "c"});
    const ReshardLayout layout = three.layout(target);
    ASSERT_EQ(layout.runs().size(), 2u);
    EXPECT_EQ(three.model.read(layout.of_run(layout.runs()[1], 0, weight_of)),
              (Numbers{13, 14, 15}));
  }
  const ReshardTarget target = target_of(0, EngineWrapper::fp16_fused, 2, {"c", "a"});
  const ReshardLayout layout = three.layout(target);
  ASSERT_EQ(layout.runs().size(), 1u);
  EXPECT_EQ(three.model.read(layout.of_run(layout.runs()[0], 0, weight_of)),
            (Numbers{13, 14, 15, 1, 2, 3, 4, 5}));
}

// Elastic files cut the padding off the states, others keep it.
TEST(ReshardLayout, StatesHaveThePaddingThatTheWrapperKeeps) {
  Model model;
  model.add_state(model.add("a", {3}), "exp_avg");
  ReshardTarget target = target_of(1, EngineWrapper::zero12, 2, {"a"});
  const auto state = [&](uint32_t rank) {
    const ReshardLayout layout(model.source(), target);
    return model.read(layout.state_of(layout.runs()[0], rank, 0));
  };
  EXPECT_EQ(state(0), (Numbers{10, 20}));
  EXPECT_EQ(state(1), (Numbers{30, 0}));
  target.elastic = true;
  EXPECT_EQ(state(1), (Numbers{30}));
}

std::string expert(int number) {
  return "deepspeed_moe.experts.deepspeed_experts." + std::to_string(number) + ".w";
}

// utils/groups.py _create_expert_and_data_parallel: of 4 ranks and 2 expert-parallel ones, ranks 0
// and 2 have the first half of the experts. With data parallelism first these are ranks 0 and 1.
TEST(ReshardLayout, ARankHasItsOwnExperts) {
  Model model;
  for (int i = 0; i < 4; ++i) model.add(expert(i), {2});  // 1 2, 3 4, 5 6, 7 8
  ReshardTarget target = target_of(1, EngineWrapper::zero12, 4, {expert(0), expert(1)});
  target.groups[0].ep_size = 2;
  target.ep = 2;
  // A part of 4 elements over 2 ranks.
  const auto parts = [&] {
    const ReshardLayout layout(model.source(), target);
    std::vector<Numbers> all;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      all.push_back(model.read(layout.partition(layout.groups()[0], rank, true, weight_of)));
    }
    return all;
  };
  EXPECT_EQ(parts(), (std::vector<Numbers>{{1, 2}, {5, 6}, {3, 4}, {7, 8}}));
  target.data_before_experts = true;
  EXPECT_EQ(parts(), (std::vector<Numbers>{{1, 2}, {3, 4}, {5, 6}, {7, 8}}));
}

TEST(ReshardLayout, WhatIsInNoGroupIsFrozenUnlessItIsABufferOrAnotherName) {
  Three three;
  three.model.add("buffer", {1}).kind = ParamKind::buffer;
  three.model.add("alias", {5}).alias_of = "a";
  const ReshardTarget target = target_of(2, EngineWrapper::zero12, 2, {"b"});
  const ReshardLayout layout = three.layout(target);
  Names names;
  for (const Param* param : layout.frozen()) names.push_back(param->name);
  EXPECT_EQ(names, (Names{"a", "c"}));
}

TEST(ReshardLayout, OneTensorTakesParametersOfOneKindOnly) {
  Model model;
  model.add_state(model.add("a", {2}), "exp_avg");
  model.add("b", {2});
  const ReshardTarget two = target_of(1, EngineWrapper::zero12, 2, {"a", "b"});
  EXPECT_ERROR(ReshardLayout(model.source(), two), UnsupportedError,
               "folder: b: has different optimizer states than 'a', in whose group the new run's "
               "optimizer has it");
  // Each alone does no harm.
  const ReshardTarget single = target_of(0, EngineWrapper::plain, 2, {"a", "b"});
  EXPECT_EQ(ReshardLayout(model.source(), single).runs().size(), 2u);

  Model other;
  other.add("a", {2});
  other.add("b", {2}).weight = TensorSource::zeros(DType::bfloat16, {2});
  EXPECT_ERROR(ReshardLayout(other.source(), two), UnsupportedError,
               "folder: b: has a master of a different type than 'a' of its group");
}

// transformers' Adafactor factors the variance of matrices, which ZeRO does not give it.
TEST(ReshardLayout, AdafactorsVectorsAreNoStatesOfMatrices) {
  Model model;
  model.add_state(model.add("a", {2, 2}), "variance");
  const ReshardTarget plain = target_of(0, EngineWrapper::plain, 2, {"a"});
  LayoutSource source = model.source();
  EXPECT_ERROR(ReshardLayout(source, plain), UnsupportedError, "Adafactor");
  source.has_whole_states = true;
  EXPECT_EQ(ReshardLayout(source, plain).runs().size(), 1u);
  source.has_whole_states = false;
  const ReshardTarget flat = target_of(1, EngineWrapper::zero12, 2, {"a"});
  EXPECT_EQ(ReshardLayout(source, flat).runs().size(), 1u);
}

}  // namespace
}  // namespace dsckpt
