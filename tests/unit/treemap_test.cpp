#include "inspect/treemap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace dsckpt {
namespace {

NamedTensor tensor(std::string name, int64_t elements) {
  return {std::move(name), "", ParamKind::trainable, TensorSource::zeros(DType::uint8, {elements}),
          ""};
}

double area_of(const MapArea& area) {
  return area.width * area.height;
}

TEST(Squarified, GivesTheRectanglesOfThePaper) {
  // Bruls, Huizing and van Wijk, figure 4: 6, 6, 4, 3, 2, 2, 1 in a rectangle of 6 by 4.
  const std::vector<MapArea> areas = squarified({6, 6, 4, 3, 2, 2, 1}, {}, 1.5);
  const double expected[][4] = {{0, 0, 3, 2},
                                {0, 2, 3, 2},
                                {3, 0, 12. / 7, 7. / 3},
                                {3 + 12. / 7, 0, 9. / 7, 7. / 3},
                                {3, 7. / 3, 1.2, 5. / 3},
                                {4.2, 7. / 3, 1.2, 5. / 3},
                                {5.4, 7. / 3, 0.6, 5. / 3}};
  ASSERT_EQ(areas.size(), 7U);
  for (size_t i = 0; i < areas.size(); ++i) {
    EXPECT_NEAR(areas[i].x * 6, expected[i][0], 1e-9) << i;
    EXPECT_NEAR(areas[i].y * 4, expected[i][1], 1e-9) << i;
    EXPECT_NEAR(areas[i].width * 6, expected[i][2], 1e-9) << i;
    EXPECT_NEAR(areas[i].height * 4, expected[i][3], 1e-9) << i;
  }
}

TEST(Squarified, WeightsBeyondThePrecisionOfOthersHaveFiniteAreas) {
  for (const MapArea& area : squarified({1e18, 1, 1e-18, 1e-300}, {}, 2)) {
    for (const double value : {area.x, area.y, area.width, area.height}) {
      EXPECT_TRUE(value >= 0 && value <= 1 + 1e-9) << value;
    }
  }
}

TEST(Treemap, SmallTensorsOfAModuleAreOneCell) {
  std::vector<NamedTensor> tensors{tensor("big", 900)};
  for (const char* name : {"m.a", "m.b", "m.c"}) tensors.push_back(tensor(name, 1));
  tensors.push_back(tensor("m.large", 97));
  const Treemap map = treemap_of(tree_of(tensors, true), 1, 0.05);
  ASSERT_EQ(map.cells.size(), 3U);
  EXPECT_EQ(map.cells[1].path, "m.large");
  EXPECT_EQ(map.cells[2].path, "m");
  EXPECT_EQ(map.cells[2].name, "");
  EXPECT_EQ(map.cells[2].bytes, 3U);
  EXPECT_EQ(map.cells[2].tensors, 3U);
  EXPECT_NEAR(area_of(map.cells[2].area), 0.003, 1e-12);
}

TEST(Treemap, TensorThatIsAModuleTooKeepsItsOwnBytes) {
  const Treemap map =
      treemap_of(tree_of({tensor("a", 600), tensor("a.b", 300), tensor("c", 100)}, true), 1, 0.001);
  uint64_t bytes = 0;
  double area = 0;
  for (const MapCell& cell : map.cells) {
    bytes += cell.bytes;
    area += area_of(cell.area);
    EXPECT_NEAR(area_of(cell.area), static_cast<double>(cell.bytes) / 1000, 1e-9);
  }
  EXPECT_EQ(bytes, 1000U);
  EXPECT_NEAR(area, 1, 1e-9);
}

TEST(Treemap, LargeModulesAreTakenApartForColours) {
  std::vector<NamedTensor> tensors{tensor("model.embed", 200), tensor("head", 150),
                                   tensor("model.norm", 1)};
  for (int layer = 0; layer < 10; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    tensors.push_back(tensor(prefix + ".attn.q", 25));
    tensors.push_back(tensor(prefix + ".mlp.up", 40));
  }
  const Treemap map = treemap_of(tree_of(tensors, true), 1, 1e-6);
  std::vector<std::string> names;
  for (const MapGroup& group : map.groups) names.push_back(group.name);
  EXPECT_EQ(names, (std::vector<std::string>{"model.layers.[0-9].mlp.up",
                                             "model.layers.[0-9].attn.q", "model.embed", "head"}));
  EXPECT_EQ(map.rest.bytes, 1U);
}

TEST(Treemap, NumberOfCellsIsBoundedForManyTensors) {
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 30000; ++i) {
    tensors.push_back(tensor("m" + std::to_string(i % 173) + ".t" + std::to_string(i), 1 + i % 97));
  }
  const Treemap map = treemap_of(tree_of(tensors, true), 1.8, 1e-3);
  EXPECT_LE(map.cells.size(), 2000U);
  EXPECT_LE(map.groups.size(), 8U);
  double area = 0;
  for (const MapCell& cell : map.cells) area += area_of(cell.area);
  EXPECT_NEAR(area, 1, 1e-9);
}

TEST(Treemap, NothingHasNoCells) {
  EXPECT_TRUE(treemap_of(tree_of({}, true), 1, 0.1).cells.empty());
  EXPECT_TRUE(treemap_of(tree_of({tensor("empty", 0)}, true), 1, 0.1).cells.empty());
}

}  // namespace
}  // namespace dsckpt
