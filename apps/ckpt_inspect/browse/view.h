// View: draws a Browser and its pages, and obeys the keys.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/patterns.h"
#include "ckpt_inspect/browse/job.h"
#include "ckpt_inspect/browse/pages.h"
#include "ckpt_inspect/browse/screen.h"
#include "inspect/browser.h"

namespace dsckpt::inspect {

// A line of --help on the keys.
struct KeyHelp {
  const char* keys;
  const char* what;
};
const std::vector<KeyHelp>& key_helps();

class View {
 public:
  View(const Opened& opened, Browser& browser, Screen& screen)
      : opened_(opened), browser_(browser), screen_(screen) {}

  // Runs until the user quits. An error of reading a tensor's values is only shown.
  void run();

 private:
  // A text that is shown instead of the tree.
  struct Page {
    std::string title;
    std::string facts;
    struct Tab {
      char key;
      std::string name;
      PageWork work;
    };
    std::vector<Tab> tabs;  // one at least
    size_t tab = 0;
    Lines lines;  // empty while they are read
    size_t top = 0;
  };
  struct Columns;

  void draw();
  void draw_title();
  void draw_tree();
  void draw_page();
  void draw_right(size_t row, const std::string& text, cli::Style style);
  Columns columns_of_lines(size_t first, size_t last) const;
  std::string name_of(const Browser::Line& line) const;
  std::string what_of(const Browser::Line& line) const;
  std::string status() const;
  std::string kinds_text() const;

  bool handle(const Typed& typed);  // false: quit
  bool handle_in_tree(const Typed& typed);
  void handle_in_page(const Typed& typed);
  void handle_in_prompt(const Typed& typed);
  void open_tensor(char tab);
  void open_difference();
  void open_text(std::string title, PageWork work);
  void start_tab(size_t tab);
  void close_page();
  void search(bool forward);
  size_t room() const;  // rows between what is above and below

  const Opened& opened_;
  Browser& browser_;
  Screen& screen_;
  size_t top_ = 0;                     // the first line shown of the tree
  std::optional<Page> page_;           // nullopt: the tree
  std::optional<std::string> prompt_;  // what was typed after '/'
  std::optional<Patterns> pattern_;
  std::string message_;
  std::unique_ptr<PageJob> job_;  // reads what the page shows
};

}  // namespace dsckpt::inspect
