"use strict";
// The view of dead letters.

addView("dead-letters", { title: "Dead letters" });
