#pragma once
#include "dsckpt/error.h"
