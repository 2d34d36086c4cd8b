// In place of the theme's file of this name, which holds 1.5 MB of icons that no page uses.
// The few icons of the theme come from its style sheet and its local font.
