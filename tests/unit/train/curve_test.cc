// Tests the curve of a run: the table, which is read again, and the picture.

#include "model/train/curve.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::HasSubstr;

const FigureNames kNames = {.amount = "tokens",
                            .unit = "bits per byte",
                            .train_column = "train",
                            .held_out = {{"fresh", "a new state"}, {"share", "found", false}}};
const std::vector<CurvePoint> kCurve = {{1, 50, 0.5, 3.0, {2.9, 0.25}, 0.001},
                                        {2, 100, 1.5, 2.0, {2.1, 0.75}, 0.0005}};

TEST(CurveTest, ReadsBackWhatItWrites) {
  const TempFolder folder;
  const std::string path = folder.File("curve.csv");
  EXPECT_TRUE(ReadCurve(path, kNames)->empty());
  ASSERT_TRUE(WriteCurveCsv(path, kNames, kCurve).ok());
  const auto curve = ReadCurve(path, kNames);
  ASSERT_TRUE(curve.ok()) << curve.status();
  ASSERT_EQ(curve->size(), 2U);
  EXPECT_EQ((*curve)[1].step, 2);
  EXPECT_EQ((*curve)[1].amount, 100);
  EXPECT_EQ((*curve)[1].seconds, 1.5);
  EXPECT_EQ((*curve)[1].train, 2.0);
  EXPECT_EQ((*curve)[1].held_out, (std::vector<double>{2.1, 0.75}));
  EXPECT_EQ((*curve)[1].learning_rate, 0.0005);
  FigureNames other = kNames;
  other.held_out.pop_back();
  const auto is_of_another_kind =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path + ": not a curve of this version"));
  EXPECT_THAT(ReadCurve(path, other), is_of_another_kind);
  other = kNames;
  other.held_out[0].column = "stale";  // as many columns
  EXPECT_THAT(ReadCurve(path, other), is_of_another_kind);
}

TEST(CurveTest, ReadsFiguresThatAreNotFinite) {
  const TempFolder folder;
  const std::string path = folder.File("curve.csv");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(
      WriteCurveCsv(path, kNames, {{1, 50, 0.5, 3.0, {kInfinity, -std::nan("")}, 0.001}}).ok());
  const auto curve = ReadCurve(path, kNames);
  ASSERT_TRUE(curve.ok()) << curve.status();
  ASSERT_EQ(curve->size(), 1U);
  EXPECT_EQ((*curve)[0].held_out[0], kInfinity);
  EXPECT_TRUE(std::isnan((*curve)[0].held_out[1]));
  EXPECT_EQ((*curve)[0].learning_rate, 0.001);
  for (const char* line : {"2,100,1.5,2.0,2.1,0.75", "2,100,1.5,2.0,2.1,0.75,0.0005,1",
                           "2,100,1.5,x,2.1,0.75,0.0005"}) {
    WriteBytes(path, ReadBytes(path) + line + "\n");
    EXPECT_THAT(ReadCurve(path, kNames),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bad line: ")));
    ASSERT_TRUE(WriteCurveCsv(path, kNames, kCurve).ok());
  }
}

// The picture is 720 wide and 400 high. The lines are at x 56 to 704 and y 16 to 356.
TEST(CurveTest, DrawsTheLossesAndNamesThem) {
  const TempFolder folder;
  const std::string path = folder.File("curve.svg");
  ASSERT_TRUE(WriteCurveSvg(path, kNames, kCurve).ok());
  const std::string svg = ReadBytes(path);
  EXPECT_THAT(svg, HasSubstr(R"(points="380.0,16.0 704.0,356.0 ")"));  // training, 3 to 2
  EXPECT_THAT(svg, HasSubstr(R"(points="380.0,50.0 704.0,322.0 ")"));  // held out, 2.9 to 2.1
  EXPECT_THAT(svg, HasSubstr(R"(y="30" text-anchor="end" fill="#888888">training</text>)"));
  EXPECT_THAT(svg, HasSubstr(R"(y="46" text-anchor="end" fill="#1f77b4">held out, a new state<)"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("found")));  // a share is not a loss
  EXPECT_THAT(svg, HasSubstr("training tokens; bits per byte"));
  EXPECT_THAT(svg, HasSubstr(R"(y="20.0" text-anchor="end">3.0</text>)"));
  EXPECT_THAT(svg, HasSubstr(R"(x="380.0" y="376" text-anchor="middle">50</text>)"));
  EXPECT_THAT(svg, HasSubstr(R"(x="704.0" y="376" text-anchor="end">100</text>)"));
  EXPECT_THAT(svg, HasSubstr(R"(<circle cx="380.0" cy="50.0" r="2" fill="#1f77b4"/>)"));
}

// The loss falls from 8 to 2: the scale has a line for each unit.
TEST(CurveTest, TheScaleHasAllPoints) {
  const TempFolder folder;
  const std::string path = folder.File("curve.svg");
  ASSERT_TRUE(WriteCurveSvg(path, kNames, {{1, 50, 0.5, 8.0, {7, 0}, 0}, kCurve[1]}).ok());
  const std::string svg = ReadBytes(path);
  EXPECT_THAT(svg, HasSubstr(R"(points="380.0,16.0 704.0,356.0 ")"));
  EXPECT_THAT(svg, HasSubstr(R"(y="20.0" text-anchor="end">8.0</text>)"));
  EXPECT_THAT(svg, HasSubstr(R"(text-anchor="end">7.0</text>)"));
  EXPECT_THAT(svg, testing::Not(HasSubstr(R"(text-anchor="end">7.5</text>)")));
}

}  // namespace
}  // namespace aft
